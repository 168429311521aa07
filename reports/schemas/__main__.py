"""Writes the schemas that follow from the code into this folder."""

from __future__ import annotations

from pathlib import Path

from fiafuzz.campaign.whole_files import write_whole

from . import CURRENT, current

for name in CURRENT:
    file, content = current(name)
    write_whole(Path(__file__).parent / file, content.encode())
    print(file)
