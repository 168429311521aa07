"""Reading and writing dumped tensors for reference and judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fiafuzz.model.case import Case, CaseError
from fiafuzz.model.dumps import DumpError, inputs_from_dump, load_dump
from fiafuzz.model.tensors import materialize

from .main import UserError

if TYPE_CHECKING:
    from fiafuzz.model.tensors import Tensors


def tensors_of(case: Case, where: str, inputs: str | None) -> Tensors:
    """The tensors of a case: from a dump where one is given, else from fills and literal values. UserError in one line."""
    try:
        if inputs is None:
            return materialize(case)
        return inputs_from_dump(case, load_dump(inputs))
    except DumpError as error:
        raise UserError(str(error)) from None
    except CaseError as error:
        raise UserError(f"{where}: {error}") from None
    except MemoryError:
        raise UserError(f"{where}: the tensors of this case do not fit into memory") from None


def read_dump(path: str) -> Any:
    """A dump file; UserError in one line when it cannot be read."""
    try:
        return load_dump(path)
    except DumpError as error:
        raise UserError(str(error)) from None
