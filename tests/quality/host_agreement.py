"""Compare predictions with the measured host verdicts.
Run: python tests/quality/host_agreement.py [--profile P] [--half even|odd] [--check NAME] [--list N]

Reads host_verdicts_dev.jsonl.gz from $FIAFUZZ_SHARED/data or ../shared/data. Rows marked ``unsure`` are counted apart.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from fiafuzz.model.case import case_from_dict
from oracles.constraints.predict import predict


def shared() -> Path:
    return Path(os.environ.get("FIAFUZZ_SHARED", ROOT.parent / "shared"))


def rows(profile: str | None = None, half: str | None = None):
    with gzip.open(shared() / "data" / "host_verdicts_dev.jsonl.gz", "rt") as lines:
        for line in lines:
            row = json.loads(line)
            if profile and row["profile"] != profile:
                continue
            if half and (int(row["id"].rsplit("-", 1)[1], 16) % 2 == 0) != (half == "even"):
                continue
            yield row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile")
    parser.add_argument("--half", choices=["even", "odd"])
    parser.add_argument("--check", help="only rows rejected by this host function")
    parser.add_argument("--list", type=int, default=0, help="print up to N disagreements")
    options = parser.parse_args()
    totals: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    missed: collections.Counter[str] = collections.Counter()
    false: collections.Counter[str] = collections.Counter()
    listed = 0
    for row in rows(options.profile, options.half):
        host = row["host"]
        if options.check and host["check"] != options.check:
            continue
        got = predict(case_from_dict(row["case"]), row["profile"])
        unsure = "/unsure" if row.get("unsure") else ""
        count = totals[row["profile"] + unsure]
        count["rows"] += 1
        agree = got.verdict == host["verdict"]
        count["agree"] += agree
        if host["verdict"] == "reject":
            count["rejects"] += 1
            count["code"] += agree and host["code"] in got.codes
        if not agree:
            if got.verdict == "accept":
                missed[f"{row['profile']}{unsure} {host['check'] or host['verdict']}"] += 1
            else:
                false[f"{row['profile']}{unsure} {' '.join(got.rule_ids[:3])}"] += 1
            if listed < options.list:
                listed += 1
                print(f"--- {row['id']} {row['profile']} host={host} got={got.verdict} {got.rule_ids[:6]} {got.undecided}")
                print(f"    fault={row['fault']} unsure={row.get('unsure')}")
                print(f"    {json.dumps(row['case'])[:1500]}")
    for name, count in sorted(totals.items()):
        print(
            f"{name}: {count['agree']}/{count['rows']} agree ({100 * count['agree'] / max(1, count['rows']):.2f} %), "
            f"code {count['code']}/{count['rejects']}"
        )
    print("rejected by the host, accepted here:", dict(missed.most_common(60)))
    print("accepted by the host, not here:", dict(false.most_common(60)))


if __name__ == "__main__":
    main()
