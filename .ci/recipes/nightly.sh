#!/usr/bin/env bash
# A night of fuzzing, for cron:
#
#     0 22 * * *  FIA_HOME=/srv/fia FIA_BACKEND=torch-npu /srv/fia/nightly.sh >> /srv/fia/nightly.log 2>&1
#
# FIA_HOME holds the corpus, one directory a run, and the trend over the nights; FIA_BUILD names the build in it. A run that was killed (a reboot, a power
# cut) is finished first, and counts as this night's. Exit status: that of fiafuzz (0 clean, 1 findings, 4 the backend
# cannot run here, ...), so that whatever starts this script can tell people.
set -uo pipefail
home=${FIA_HOME:-$HOME/fia}
backend=${FIA_BACKEND:-cpu}
time=${FIA_TIME:-8h}
build=${FIA_BUILD:-}
keep=${FIA_KEEP:-30}
reports=html,junit,sarif

mkdir -p "$home/runs" && cd "$home" || exit 2
exec 9>nightly.lock
flock -n 9 || { echo "$(date -u +%FT%TZ) the night before is still at work"; exit 0; }

new_run() {
    run=runs/$(date -u +%Y%m%d-%H%M%S)
    echo "$(date -u +%FT%TZ) $run on $backend for $time"
    fiafuzz fuzz --backend "$backend" --build "$build" --max-time "$time" -w auto --corpus corpus --out "$run" --report "$reports"
}

last=$(find runs -mindepth 2 -maxdepth 2 -name run.json | sort | tail -n 1)
if [ -n "$last" ] && grep -q '"status": "running"' "$last"; then
    run=${last%/run.json}
    echo "$(date -u +%FT%TZ) goes on with $run"
    fiafuzz fuzz --resume "$run" -w auto --report "$reports"
    status=$?
    # Another build or another fiafuzz since then: that run cannot be finished any more.
    [ "$status" -eq 2 ] && { new_run; status=$?; }
else
    new_run
    status=$?
fi

fiafuzz history runs --last 14 --html runs/history.html
# Old runs go; what they found is in the corpus.
find runs -mindepth 1 -maxdepth 1 -type d | sort | head -n "-$keep" | xargs -r -d '\n' rm -rf --
echo "$(date -u +%FT%TZ) fiafuzz ended with status $status, report $home/$run/report.html"
exit "$status"
