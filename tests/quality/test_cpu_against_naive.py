"""The cpu kernel and both SDPA backends against attention written out row by row, on random calls of every kind."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.backends.torch_sdpa import FlashBackend, MathBackend
from fiafuzz.model.case import Band, Normal, Uniform
from fiafuzz.model.codecs import decode
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from tests.quality.naive import Naive
from tests.unit.backend_cases import CAUSAL, buffers, call, mask, spec

PADDED = ("BSH", "BSND", "BNSD", "BNSD_BSND", "BSND_BNSD", "BSH_BNSD", "BNSD_NBSD", "BSND_NBSD", "BSH_NBSD")
PACKED = ("TND", "NTD", "NTD_TND", "TND_NTD")
CASES = 400


def zero_some(r, lens):
    return tuple(0 if r.random() < 0.15 else n for n in lens)


def random_call(seed):
    """A call with a random mixture of features that go together."""
    r = random.Random(seed)
    B, KN, G = r.randint(1, 3), r.choice((1, 1, 2, 3)), r.choice((1, 1, 2, 3))
    layout = r.choice(PADDED * 2 + PACKED)
    packed = layout in PACKED
    Q, K, D = r.choice((1, 1, 2, 5, 9, 33)), r.choice((1, 2, 7, 24, 63, 64, 65, 150)), r.choice((8, 16, 24, 40, 64))
    storage = r.choice(("plain", "plain", "cache", "list", "prefix", "rope", "padding"))
    if storage == "rope" and r.random() < 0.4:
        D, KN, Q = 512, 1, min(Q, 2)
    more = {
        "dtype": r.choice(("FLOAT16", "BFLOAT16")),
        "scale": r.choice((1.0, 0.125, 0.3, -0.2, 0.0)),
        "lse": r.random() < 0.6,
        "seed": seed,
    }
    if packed or r.random() < 0.5:
        lens = zero_some(r, [r.randint(1, Q) for _ in range(B)])
        more["q_lens"] = lens if packed or r.random() < 0.8 else lens[:1]
    if packed or r.random() < 0.6:
        lens = zero_some(r, [r.randint(1, K) for _ in range(B)])
        more["kv_lens"] = lens if packed or r.random() < 0.7 else r.choice((lens[:1], (*lens, 3)))
    if storage == "cache":
        more |= {"cache": r.choice(("BnBsH", "BnNBsD", "NZ")), "block": r.choice((16, 32))}
        D = 16 * (1 + D // 16)
        kv_lens = more.get("kv_lens") or (K,) * B
        more["kv_lens"] = kv_lens = kv_lens if len(kv_lens) >= B else kv_lens * B
        if not any(kv_lens):
            more["kv_lens"] = (5,) * B
        K = -(-max(more["kv_lens"]) // more["block"]) * more["block"]
    elif storage == "list" and not packed:
        more["lists"] = [r.randint(1, K) for _ in range(B)]
        more.pop("kv_lens", None)
    elif storage == "prefix" and not packed:
        more["prefix"] = r.choice((1, 5, 70))
        if r.random() < 0.5:
            more["actualSharedPrefixLen"] = (r.randint(1, more["prefix"]),)
    elif storage == "rope":
        more["rope"] = 64
    elif storage == "padding" and not packed and len(more.get("kv_lens", ())) == B == len(more.get("q_lens", ())):
        if max(more["q_lens"]) < Q:
            more["queryPaddingSize"] = spec((1,), "INT64", [r.randint(-2, Q - max(more["q_lens"]))])
        if max(more["kv_lens"]) < K:
            more["kvPaddingSize"] = spec((1,), "INT64", [r.randint(-2, K - max(more["kv_lens"]))])
    if not more.get("rope") and r.random() < 0.2:
        more["DV"] = r.choice((16, 48)) if more.get("cache") == "NZ" else r.choice((8, 48, 72))
    P = more.get("prefix", 0)
    longest = max(more.get("lists") or (K,))
    mode = r.choice((0, 0, 0, 1, 2, 3, 4))
    if mode >= 2:
        more |= {"sparseMode": mode, "attenMask": CAUSAL}
        if mode == 4:
            more["preTokens"] = r.choice((3, 70, 2147483647))
            more["nextTokens"] = r.choice((-2, 0, 5, 2147483647))
    elif mode == 1 or r.random() < 0.3:
        rows, columns = Q + r.choice((0, 3)), longest + P + r.choice((0, 5))
        lead = r.choice(((), (1,), (B,), (B, 1), (1, 1)))
        if lead == () and Q == 1:
            lead = (1,)
        more |= {
            "sparseMode": mode,
            "attenMask": mask(*lead, rows, columns, dtype=r.choice(("BOOL", "INT8", "UINT8")), p=r.choice((0.2, 0.9))),
        }
        if mode == 0 and r.random() < 0.3:
            more |= {
                "preTokens": 4,
                "nextTokens": 3,
                "attenMask": spec((*lead, rows, columns), "BOOL", fill=Band(4, 3)),
            }
    extra = r.random()
    if extra < 0.2:
        more["pseShift"] = spec(
            (r.choice((1, B)), KN * G, r.choice((Q, Q + 2, 1)), longest + P + r.choice((0, 4))), more["dtype"]
        )
    elif extra < 0.3:
        more |= {
            "pseShift": spec((KN * G,)),
            "pseType": r.choice((2, 3)),
            "qStartIdx": (r.randint(0, 9),),
            "kvStartIdx": (r.randint(0, 50),),
        }
    elif extra < 0.45:
        more["learnableSink"] = spec((KN * G,), more["dtype"], fill=Uniform(-4, 9))
    return call(layout, B=B, N=KN * G, KN=KN, Q=Q, K=K, D=D, **more)


def check(case, held, allowed, tensors, lse_allowed=2e-5):
    n = Naive(case, tensors)
    rows, logs = n.run()
    spec_out = case.outputs.attentionOut
    got = np.asarray(decode(spec_out.dtype, held["attentionOut"]), np.float64)
    lse = held.get("softmaxLse")
    seen = np.zeros(spec_out.shape, bool)
    for (b, head, at), want in rows.items():
        row = n.place(got, b, head, at)
        n.place(seen, b, head, at)[...] = True
        if want is None:
            assert not row.any(), f"row {b, head, at} has no key and is not 0"
        else:
            assert np.abs(row - want).max() <= allowed * (1 + np.abs(want).max()), f"row {b, head, at}"
        if lse is not None:
            value = float(lse[at, head, 0] if n.packed else lse[b, head, at, 0])
            assert value == logs[b, head, at] or abs(value - logs[b, head, at]) <= lse_allowed * (1 + abs(value)), (
                f"lse {b, head, at}"
            )
    if not n.packed:
        assert not got[~seen].any(), "padding rows are not 0"
        if lse is not None:
            done = {(b, head, at) for b, head, at in rows}
            rest = [
                lse[b, h, s, 0] for b in range(n.B) for h in range(n.N) for s in range(n.Q) if (b, h, s) not in done
            ]
            assert all(x == np.inf for x in rest)


@pytest.mark.parametrize("part", range(8))
def test_cpu_matches_row_by_row_attention(part):
    backend = CpuBackend()
    for seed in range(part * CASES // 8, (part + 1) * CASES // 8):
        case = random_call(seed)
        tensors, held = materialize(case), buffers(case)
        outcome = backend.compute(Scene(case), tensors, held)
        assert outcome.kind == "ok", f"seed {seed}: {outcome.message}"
        # The probabilities are rounded to 11 or 8 bits, the result once more.
        allowed = 2.0**-10 if case.inputs.query.dtype == "FLOAT16" else 2.0**-7
        try:
            check(case, held, allowed, tensors)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None


@pytest.mark.parametrize("which", ["math", "flash"])
def test_sdpa_matches_row_by_row_attention(which):
    backend, run = {"math": MathBackend, "flash": FlashBackend}[which](), 0
    for seed in range(CASES // 2):
        case = random_call(1000 + seed)
        scene = Scene(case)
        if backend.cannot_express(scene) is not None:
            continue
        tensors, held = materialize(case), buffers(case)
        outcome = backend.run(case, scene, tensors, held)
        assert outcome.kind == "ok", f"seed {seed}: {outcome.message}"
        run += 1
        try:
            check(case, held, 2.0**-9 if case.inputs.query.dtype == "FLOAT16" else 2.0**-6, tensors, 2e-4)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None
    assert run >= 20


def test_normal_data_and_many_columns():
    backend = CpuBackend()
    normal = Normal(0, 1)
    case = call(B=1, N=2, KN=1, Q=3, K=700, D=64, lse=True)
    changed = {name: (spec(getattr(case.inputs, name)[0].shape, "FLOAT16", fill=normal),) for name in ("key", "value")}
    case = case.replace(query=spec(case.inputs.query.shape, "FLOAT16", fill=normal), **changed)
    tensors, held = materialize(case), buffers(case)
    assert backend.compute(Scene(case), tensors, held).kind == "ok"
    check(case, held, 2.0**-10, tensors)
