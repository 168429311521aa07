"""fiafuzz reference: the expected outputs of a case."""

from __future__ import annotations

import click

from .main import UserError
from .options import one_record


@click.command()
@click.argument("file")
@click.option("--inputs", metavar="IN.npz", help="Dumped input tensors that replace the case's fills.")
@click.option("-o", "--output", "target", metavar="OUT.npz", required=True, help="Where to write the expected outputs.")
@click.option(
    "--form",
    type=click.Choice(["auto", "ideal", "stagewise"]),
    default="auto",
    show_default=True,
    help="ideal: exact mathematics in float64; stagewise: with the operator's roundings; auto: the one that judges.",
)
@click.option("--name", help="Which record of FILE, when it holds several.")
def command(file: str, inputs: str | None, target: str, form: str, name: str | None) -> None:
    """Compute the expected outputs of the case in FILE and write them to OUT.npz.

    OUT.npz holds out:attentionOut (and out:softmaxLse when asked for) as float64, and compare:<output>, true where an
    element may be compared. Tensors in IN.npz are called in:<parameter>, in:key.0, in:value.0.
    """
    from fiafuzz.model.dumps import DumpError, save_dump
    from fiafuzz.model.scene import Scene
    from oracles.reference import ReferenceError, reference

    from .tensors_in import tensors_of

    record = one_record(file, name)
    tensors = tensors_of(record.case, record.where, inputs)
    scene = Scene(record.case)
    try:
        expected = reference(record.case, tensors, scene=scene, form=form)
    except ReferenceError as error:
        raise UserError(f"{record.where}: {error}") from None
    arrays = {f"out:{k}": v for k, v in expected.outputs.items()}
    arrays |= {f"compare:{k}": v for k, v in expected.compare.items()}
    try:
        save_dump(target, arrays)
    except DumpError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"{target}: {error.strerror or error}") from None
    kept = ", ".join(f"{k} {int(v.sum())} of {v.size} elements comparable" for k, v in expected.compare.items())
    left_out = "; ".join(f"{n} not compared: {why}" for why, n in expected.reasons.items() if n)
    click.echo(f"{target}: {expected.form} form; {kept}" + (f"; {left_out}" if left_out else ""), err=True)
