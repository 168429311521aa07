"""fiafuzz judge: a verdict on outputs that somebody dumped."""

from __future__ import annotations

import math
from typing import Any

import click

from fiafuzz.campaign.codes import title

from .main import EXIT_CLEAN, EXIT_FINDINGS, UserError
from .options import json_option, one_record


def _standards() -> Any:
    from oracles.precision import STANDARDS

    return STANDARDS


@click.command()
@click.argument("file")
@click.option("--inputs", metavar="IN.npz", help="Dumped input tensors that replace the case's fills.")
@click.option("--outputs", metavar="NPU.npz", required=True, help="The dumped outputs to judge.")
@click.option(
    "--standard",
    metavar="NAME",
    help="Precision standard by its pinned name (default: the fuzzer's own gate, which rests on mixed-2026-09).",
)
@click.option("--name", help="Which record of FILE, when it holds several.")
@click.option("--worst", default=5, show_default=True, type=click.IntRange(0), help="How many failing elements to print, worst first.")
@json_option
def command(file: str, inputs: str | None, outputs: str, standard: str | None, name: str | None, worst: int, as_json: bool) -> None:
    """Judge dumped outputs of the case in FILE against the reference. Exit 0: inside the standard, 1: not.

    NPU.npz holds out:attentionOut (and out:softmaxLse): FLOAT16 as float16, BFLOAT16 as uint16 bit patterns, 8-bit
    floats as uint8 codes, INT8 as int8.
    """
    from fiafuzz.model.dumps import DumpError, outputs_from_dump
    from fiafuzz.model.scene import Scene
    from oracles.precision import DEFAULT_STANDARD, judge_outputs
    from oracles.reference import ReferenceError, reference

    from .tensors_in import read_dump, tensors_of

    if standard is not None and standard not in _standards():
        raise UserError(f"unknown standard {standard!r}; known: {', '.join(_standards())}")
    record = one_record(file, name)
    try:
        got = outputs_from_dump(record.case, read_dump(outputs))
    except DumpError as error:
        raise UserError(str(error)) from None
    tensors = tensors_of(record.case, record.where, inputs)
    scene = Scene(record.case)
    try:
        expected = reference(record.case, tensors, scene=scene)
    except ReferenceError as error:
        raise UserError(f"{record.where}: {error}") from None
    # A verdict on one call by hand: the sharpest form, which a campaign of thousands of calls cannot afford.
    verdict = judge_outputs(record.case, scene, expected, got, standard or DEFAULT_STANDARD, lone=True)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"name": record.name, **judgement_data(verdict, worst)}).decode())
    else:
        click.echo(judgement_text(record.name, verdict, worst), nl=False)
    raise click.exceptions.Exit(EXIT_CLEAN if verdict.passed else EXIT_FINDINGS)


def judgement_data(verdict: Any, worst: int) -> dict[str, Any]:
    """A judgement as JSON data; numbers that JSON has no word for are written as "nan", "inf" and "-inf"."""
    data: dict[str, Any] = _sayable(verdict.to_dict())
    for record in data["outputs"]:
        record["worst"] = record["worst"][:worst]
    return data


def _sayable(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(k): _sayable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sayable(v) for v in value]
    return value


def judgement_text(name: str, verdict: Any, worst: int) -> str:
    """A judgement as lines for people: the verdict, then each output with its worst elements."""
    head = "pass" if verdict.passed else f"{verdict.code} {title(verdict.code)}"
    lines = [
        f"{name}: {head} (standard {verdict.standard}: {'passed' if verdict.standard_passed else 'failed'}; "
        f"row gate: {'passed' if verdict.gate_passed else 'failed'})"
    ]
    for record in verdict.outputs:
        if record.problem:
            lines.append(f"  {record.name}: {record.problem}")
            continue
        lines.append(
            f"  {record.name}: {record.compared} elements compared, {record.excluded} left out, "
            f"{record.failing} off; largest error {record.ratio:.3g} of what is allowed"
        )
        for element in record.worst[:worst]:
            lines.append(
                f"    {list(element.index)}  expected {element.expected:.8g}  got {element.got:.8g}  allowed +-{element.allowed:.3g}"
            )
    lines += [f"  left out: {count} elements, {why}" for why, count in verdict.reasons.items() if count]
    return "\n".join(lines) + "\n"
