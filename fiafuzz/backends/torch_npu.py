"""The torch-npu backend: the operator through torch_npu's two Python operators, on a device.

Outputs are allocated here, poisoned and handed over (the ``.out`` form), so that what the operator does not write shows; with
``outputs=torch`` torch_npu allocates them, and their shapes and dtypes are tested too. Every call ends with a synchronisation,
so that what goes wrong late is still the fault of its own case.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Optional, Union

import numpy as np

from fiafuzz.model.case import Case, CaseError
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors

from . import ascend, npu_errors, torch_npu_load
from .protocol import BackendInfo, BackendUnavailable, Outcome
from .spelling import Chosen
from .torch_npu_arguments import Call, TensorUse, Vocabulary, choose, functions
from .torch_npu_words import OPERATORS, TORCH_DTYPES

NAME = "torch-npu"
OPERATOR_TIMEOUT_MS = 20_000
"""torch_npu lets an operator run for nine minutes; small calls end in milliseconds."""

Outputs = dict[str, "np.ndarray[Any, Any]"]


class TorchNpuBackend:
    """torch_npu on one device. ``profile`` is what the cases are generated for (None: what the device can stand for)."""

    def __init__(self, profile: Optional[str] = None, chosen: Optional[Chosen] = None) -> None:
        self.profile = profile
        self.chosen = chosen or Chosen(NAME)
        self.forced = next((w for w in OPERATORS if w in self.chosen.words), None)
        self.own_outputs = self.chosen.options.get("outputs") == "torch"
        try:
            self.device_index = ascend.chosen_device()
        except ValueError as error:
            raise BackendUnavailable(str(error)) from error
        self.module = torch_npu_load.load(self.chosen.options.get("queue", ""))
        self.count = 0
        self.soc, self.cann = self._open_device()
        family = ascend.family_of(self.soc)
        self.product = family.product if family is not None else None
        self.reach = functions(self.product, self.cann)
        self.words = vocabulary(self.module.__version__)
        self._planned: tuple[Optional[Scene], Union[Call, str]] = (None, "")
        self.spent = ""
        """What ended the use of this process, once something did."""
        self._info = self._describe()

    def _open_device(self) -> tuple[str, str]:
        """Take the device; its SoC name and the CANN version. BackendUnavailable when there is none."""
        import torch

        npu = self.module.npu
        try:
            with torch_npu_load.stdout_to_stderr():
                self.count = count = int(npu.device_count())
                if self.device_index >= count:
                    visible = ascend.look().visible
                    hint = "" if visible is None else f" ({ascend.VISIBLE_VARIABLE}={visible})"
                    what = "no NPU is visible" if not count else f"device {self.device_index} is not among the {count} visible"
                    raise BackendUnavailable(f"{what}{hint}: 'npu-smi info' lists the devices, 'fiafuzz doctor' shows what is missing")
                soc = str(npu.get_device_name(self.device_index))
                reason = ascend.about_soc(soc)
                if reason:  # before the device is taken: what its family lacks would be the error otherwise
                    raise BackendUnavailable(reason)
                npu.set_device(self.device_index)
                torch.empty(1, dtype=torch.uint8, device=f"npu:{self.device_index}")
                with suppress(Exception):  # an older runtime cannot: the campaign's own limit still holds
                    npu.set_op_timeout_ms(OPERATOR_TIMEOUT_MS)
        except BackendUnavailable:
            raise
        except Exception as error:
            failure = npu_errors.of_text(str(error), type(error).__name__)
            raise BackendUnavailable(f"the NPU cannot be used ({failure.message}): 'fiafuzz doctor' shows what is missing") from error
        self.device = torch.device(f"npu:{self.device_index}")
        return soc, cann_version(self.module)

    def _describe(self) -> BackendInfo:
        import torch

        git = str(getattr(self.module.version, "git_version", ""))[:12]
        versions = {
            "torch": str(torch.__version__),
            "torch_npu": str(self.module.__version__) + (f" ({git})" if git and git != "unknown" else ""),
            "cann": self.cann or "unknown",
            "soc": self.soc,
            "device": str(self.device_index),
            **ascend.look().versions,
            **runtime_versions(self.module),
        }
        apis = tuple(dict.fromkeys({"v4": "v3", "v2": "v3"}.get(f, f) for op, f in self.reach.items() if self.forced in (None, op)))
        ends = ", ".join(f"{OPERATORS[op]} in {f.upper()}" for op, f in self.reach.items() if self.forced in (None, op))
        return BackendInfo(
            self.chosen.name,
            f"torch_npu on {self.soc}: {ends}",
            "own",
            versions=MappingProxyType({k: v for k, v in versions.items() if v}),
            profiles=ascend.profiles_of(self.soc, apis),
            device="npu",
            devices=self.count,
        )

    @property
    def info(self) -> BackendInfo:
        """Name, versions, the profiles that the device can stand for."""
        return self._info

    def plan(self, scene: Scene) -> Union[Call, str]:
        """The case as a call; in words why there is none."""
        if self._planned[0] is not scene:  # the campaign asks whether a call can be made, and then makes it
            self._planned = (scene, self._plan(scene))
        return self._planned[1]

    def _plan(self, scene: Scene) -> Union[Call, str]:
        if scene.product != self.product:
            return f"a call for {scene.product}, but the device {self.soc} is of {self.product}"
        return choose(scene, self.reach, self.words, self.forced, self.own_outputs)

    def cannot_express(self, scene: Scene) -> Optional[str]:
        """What torch_npu has no word for; None when the call can be made."""
        found = self.plan(scene)
        if isinstance(found, str):
            return found
        if self.own_outputs and (scene.query is None or scene.values[0] is None):
            return "torch_npu derives its outputs from query and value: neither may be null"
        return None

    def run(self, case: Case, scene: Scene, tensors: Tensors, outputs: Outputs) -> Outcome:
        """Run one call, writing into ``outputs``. Never raises."""
        started = time.perf_counter()
        call = self.plan(scene)
        if isinstance(call, str):
            return Outcome("unsupported", message=call)
        if self.spent:  # a dead queue drops calls silently: whatever came back would be no answer
            return Outcome("error", message=f"not run: this process is spent ({self.spent})", fatal=True)
        try:
            outcome = self._run(call, tensors, outputs)
        except CaseError as error:
            outcome = Outcome("unsupported", message=str(error))
        except MemoryError as error:
            outcome = Outcome("oom", message=str(error) or "out of memory")
        except Exception as error:
            outcome = npu_errors.of_text(str(error), type(error).__name__).outcome()
        if outcome.fatal:
            self.spent = outcome.message
        return replace(outcome, seconds=time.perf_counter() - started)

    def _run(self, call: Call, tensors: Tensors, outputs: Outputs) -> Outcome:
        import torch

        from .torch_npu_tensors import upload

        arguments = dict(call.plain)
        for use in call.tensors:
            found = tensors.many(use.parameter)[0] if use.parameter in ("key", "value") else tensors.one(use.parameter)
            assert found is not None
            arguments[use.argument] = upload(use, found, self.device)
        first = [arguments.pop(name) for name in ("query", "key", "value")]
        operator = getattr(torch.ops.npu, OPERATORS[call.operator])
        if self.own_outputs:
            made = operator.default(*first, **arguments)
            self._wait()
            return self._take(call, made, outputs)
        given = self._buffers(call, outputs, upload)
        operator.out(*first, **arguments, out=given)
        self._wait()
        self._fetch(call, given, outputs)
        return Outcome("ok", outputs)

    def _wait(self) -> None:
        self.module.npu.synchronize(self.device)

    def _buffers(self, call: Call, outputs: Outputs, upload: Callable[..., Any]) -> list[Any]:
        """The output tensors on the device, poisoned as the campaign handed them over."""
        import torch

        from oracles.poison import poison

        given = [upload(call.out, outputs["attentionOut"], self.device)]
        if call.lse is None:
            given.append(torch.empty(0, dtype=torch.float32, device=self.device))
        else:
            dense = outputs.get("softmaxLse")
            given.append(upload(call.lse, poison(call.lse.spec.dtype, call.lse.spec.shape) if dense is None else dense, self.device))
        return given

    def _fetch(self, call: Call, given: list[Any], outputs: Outputs) -> None:
        from .torch_npu_tensors import download

        for use, tensor in ((call.out, given[0]), (call.lse, given[1])):
            if use is not None and use.parameter in outputs:
                outputs[use.parameter][...] = download(use, tensor)

    def _take(self, call: Call, made: Any, outputs: Outputs) -> Outcome:
        """Compare the outputs that torch_npu allocated with the case's, and take their values."""
        from .torch_npu_tensors import contents

        wrong = form_of_outputs(call, made)
        if wrong:
            return Outcome("ok", outputs, flaw=("F103", wrong))
        for use, tensor in ((call.out, made[0]), (call.lse, made[1])):
            if use is not None and use.parameter in outputs:
                outputs[use.parameter][...] = contents(use, tensor)
        return Outcome("ok", outputs)


def form_of_outputs(call: Call, made: Any) -> str:
    """How shape or dtype of the outputs that torch_npu made differ from the case's, in words; "" when they do not.

    softmaxLse is compared when the case asks for it.
    """
    from .torch_npu_tensors import dtype_of, geometry

    wanted: list[tuple[str, Optional[TensorUse], Any]] = [("attentionOut", call.out, made[0])]
    if call.plain.get("softmax_lse_flag") or call.plain.get("return_softmax_lse"):
        wanted.append(("softmaxLse", call.lse, made[1]))
    for name, use, tensor in wanted:
        if use is None:
            continue
        shape, dtype = geometry(use)[0], dtype_of(use)
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            return (
                f"torch_npu makes {name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} instead of "
                f"{str(dtype).removeprefix('torch.')} {list(shape)}"
            )
    return ""


def vocabulary(version: str) -> Vocabulary:
    """What the torch_npu and torch of this process have: argument names, dtypes."""
    import torch

    arguments: dict[str, frozenset[str]] = {}
    for operator, name in OPERATORS.items():
        packet = getattr(torch.ops.npu, name, None)
        arguments[operator] = frozenset() if packet is None else frozenset(a.name for a in packet.default._schema.arguments)
    return Vocabulary(MappingProxyType(arguments), frozenset(d for d in TORCH_DTYPES.values() if hasattr(torch, d)), version)


def cann_version(module: Any) -> str:
    """The CANN version as the runtime says, "" when it does not."""
    return _ask(module, "CANN")


def runtime_versions(module: Any) -> dict[str, str]:
    """Versions of the parts of CANN, of those that the runtime knows."""
    names = {"runtime": "RUNTIME", "driver": "DRIVER", "opp": "OPP", "ops_transformer": "ops_transformer", "opbase": "opbase"}
    return {key: found for key, name in names.items() if (found := _ask(module, name))}


def _ask(module: Any, part: str) -> str:
    try:
        return str(module.npu.utils.get_cann_version(part) or "")
    except Exception:
        return ""


assert all(name in DTYPES for name in TORCH_DTYPES)
