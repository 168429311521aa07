"""Scene: a total function, and the derivations of the documents on hand-made calls."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fiafuzz.model.case import Attrs, Case, Inputs, Outputs, TensorSpec
from fiafuzz.model.factors import FACTORS, factors_of
from fiafuzz.model.layouts import LAYOUTS, cache_shape, lse_shape, tensor_shape
from fiafuzz.model.parameters import INPUTS, INT_MAX, as_int32
from fiafuzz.model.scene import FACTS, Scene

F16 = "FLOAT16"


def call(
    layout: str = "BNSD",
    *,
    q: tuple[int, ...],
    k: tuple[int, ...],
    v: tuple[int, ...] | None = None,
    heads: int = 4,
    kv_heads: int = 0,
    dtype: str = F16,
    kv_dtype: str | None = None,
    attrs: dict[str, object] | None = None,
    **inputs: object,
) -> Scene:
    kv = kv_dtype or dtype
    case = Case(
        inputs=Inputs(query=TensorSpec(q, dtype), key=(TensorSpec(k, kv),), value=(TensorSpec(v or k, kv),), **inputs),  # type: ignore[arg-type]
        attrs=Attrs(numHeads=heads, inputLayout=layout, numKeyValueHeads=kv_heads, **(attrs or {})),  # type: ignore[arg-type]
        outputs=Outputs(TensorSpec(q, dtype)),
    )
    return Scene(case)


def test_batch_layouts_give_the_same_facts() -> None:
    for layout, q, k in [("BNSD", (2, 4, 5, 16), (2, 2, 7, 16)), ("BSND", (2, 5, 4, 16), (2, 7, 2, 16)), ("BSH", (2, 5, 64), (2, 7, 32))]:
        s = call(layout, q=q, k=k, kv_heads=2)
        assert (s.B, s.Q_N, s.KV_N, s.G, s.Q_S, s.KV_S, s.Q_D, s.K_D, s.V_D) == (2, 4, 2, 2, 5, 7, 16, 16, 16)
        assert (s.q_lens, s.kv_lens) == ((5, 5), (7, 7))


def test_packed_lengths_are_differences() -> None:
    s = call("TND", q=(9, 4, 16), k=(12, 4, 16), actualSeqLengths=(2, 2, 9), actualSeqLengthsKv=(5, 11, 12))
    assert (s.B, s.T, s.KV_T, s.Q_S, s.KV_S) == (3, 9, 12, 7, 6)
    assert (s.q_lens, s.kv_lens) == ((2, 0, 7), (5, 6, 1))


def test_paged_lengths_are_per_batch_also_for_packed_queries() -> None:
    s = call(
        "TND",
        q=(3, 4, 16),
        k=(9, 16, 64),
        actualSeqLengths=(1, 3),
        actualSeqLengthsKv=(20, 7),
        blockTable=TensorSpec((2, 3), "INT32"),
        attrs={"blockSize": 16},
    )
    assert (s.storage, s.cache_layout, s.K_D, s.KV_S, s.table_span, s.kv_lens) == ("paged", "BnBsH", 16, 48, 48, (20, 7))
    nz = call("BNSD", q=(1, 4, 1, 64), k=(9, 4, 4, 16, 16), blockTable=TensorSpec((1, 3), "INT32"), attrs={"blockSize": 16})
    assert (nz.cache_layout, nz.K_D, nz.cache_block_size) == ("NZ", 64, 16)


def test_length_lists() -> None:
    one = call(q=(3, 4, 5, 16), k=(3, 4, 7, 16), actualSeqLengthsKv=(4,))
    longer = call(q=(3, 4, 5, 16), k=(3, 4, 7, 16), actualSeqLengthsKv=(1, 2, 3, 9))
    short = call(q=(3, 4, 5, 16), k=(3, 4, 7, 16), actualSeqLengthsKv=(1, 2))
    assert (one.kv_lens, longer.kv_lens, short.kv_lens) == ((4, 4, 4), (1, 2, 3), None)
    assert "2 lengths for 3 batches" in short.why["kv_lens"]


def test_tensor_list() -> None:
    case = call(q=(2, 4, 5, 16), k=(1, 4, 7, 16)).case
    items = (TensorSpec((1, 4, 7, 16), F16), TensorSpec((1, 4, 3, 16), F16))
    s = Scene(case.replace(key=items, value=items))
    assert (s.storage, s.KV_S, s.kv_lens) == ("tensor_list", 7, (7, 3))


def test_packed_int4_carrier_counts_eight_elements() -> None:
    s = call(q=(1, 4, 1, 128), k=(1, 4, 7, 16), dtype=F16, kv_dtype="INT32")
    assert (s.int4_carrier, s.k_dtype, s.key_shape, s.K_D, s.quant_kind) == (True, "INT4", (1, 4, 7, 128), 128, "antiquant")


def test_quantisation_kinds() -> None:
    rope = {"queryRope": TensorSpec((1, 4, 1, 64), "BFLOAT16"), "keyRope": TensorSpec((1, 4, 7, 64), "BFLOAT16")}
    for modes, kind, extra in [
        ((7, 7, 7), "per_block", {}),
        ((6, 6, 8), "mxfp8", {}),
        ((3, 3, 2), "gqa_fp8", {}),
        ((3, 0, 0), "decode_mla", rope),
        ((3, 0, 0), "per_tensor", {}),
        ((0, 0, 0), "per_tensor", {}),
    ]:
        s = call(
            q=(1, 4, 1, 512),
            k=(1, 4, 7, 512),
            dtype="FLOAT8_E4M3FN",
            attrs=dict(zip(("queryQuantMode", "keyAntiquantMode", "valueAntiquantMode"), modes)),
            **extra,
        )
        assert (s.quant_kind, s.full_kind) == ("full", kind)


def test_mla_kinds() -> None:
    rope = {"queryRope": TensorSpec((1, 4, 1, 64), F16), "keyRope": TensorSpec((1, 4, 7, 64), F16)}
    assert call(q=(1, 4, 1, 512), k=(1, 4, 7, 512), **rope).mla_kind == "decode"
    assert call(q=(1, 4, 1, 128), k=(1, 4, 7, 128), **rope).mla_kind == "prefill_split"
    assert call(q=(1, 4, 1, 192), k=(1, 4, 7, 192), v=(1, 4, 7, 128)).mla_kind == "prefill_combined"
    unequal = call(q=(1, 4, 1, 96), k=(1, 4, 7, 96), v=(1, 4, 7, 64))
    assert (unequal.mla_kind, unequal.unequal_d) == (None, True)


def test_effective_tokens() -> None:
    mask = {"attenMask": TensorSpec((1, 1, 5, 7), "BOOL")}
    base = {"q": (1, 4, 5, 16), "k": (1, 4, 7, 16)}
    assert call(**base, attrs={"preTokens": 1, "nextTokens": 2}).tokens == (INT_MAX, INT_MAX)
    assert call(**base, **mask, attrs={"preTokens": 1, "nextTokens": 2}).tokens == (1, 2)
    assert call(**base, **mask, attrs={"sparseMode": 3, "preTokens": 1, "nextTokens": 2}).tokens == (INT_MAX, 0)
    assert call(**base, **mask, attrs={"sparseMode": 1, "preTokens": 1}).tokens == (INT_MAX, INT_MAX)
    assert call(**base, **mask, attrs={"sparseMode": 4, "preTokens": 2**40, "nextTokens": -(2**40)}).tokens == (INT_MAX, -INT_MAX)


def test_attributes_are_cut_to_32_bits() -> None:
    assert (as_int32(2**32 + 8), as_int32(2**31), as_int32(-1)) == (8, -(2**31), -1)
    assert call(q=(1, 8, 1, 16), k=(1, 8, 7, 16), heads=2**32 + 8).Q_N == 8


def test_empty_kinds() -> None:
    assert call(q=(1, 4, 0, 16), k=(1, 4, 7, 16)).empty_case
    assert call(q=(1, 4, 5, 16), k=(1, 4, 0, 16)).empty_case
    assert not call(q=(1, 4, 5, 16), k=(1, 4, 7, 16)).empty_case


def test_layout_shapes() -> None:
    assert tensor_shape("BSH", B=2, S=3, N=4, D=5) == (2, 3, 20)
    assert tensor_shape("NTD", N=4, T=7, D=5) == (4, 7, 5)
    assert len(LAYOUTS) == 13
    assert (LAYOUTS["BSH_NBSD"].inputs, LAYOUTS["BSH_NBSD"].output) == ("BSH", "NBSD")
    assert lse_shape(LAYOUTS["NTD"], B=2, N=4, S=3, T=7) == (7, 4, 1)
    assert lse_shape(LAYOUTS["BSH"], B=2, N=4, S=3, T=0) == (2, 4, 3, 1)
    assert cache_shape("NZ", blocks=3, block_size=16, N=2, D=64) == (3, 2, 4, 16, 16)


wild = st.builds(
    TensorSpec,
    shape=st.lists(st.sampled_from([-1, 0, 1, 2, 3, 16, 64, 128, 512, 2048, 10**12]), max_size=6).map(tuple),
    dtype=st.sampled_from(["FLOAT16", "BFLOAT16", "INT8", "INT32", "FLOAT8_E4M3FN", "HIFLOAT8", "FLOAT32", "BOOL"]),
    strides=st.none() | st.lists(st.integers(-2, 5), max_size=5).map(tuple),
)
wild_ints = st.lists(st.integers(-5, 300), max_size=5).map(tuple)


@settings(max_examples=300)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            p.name: wild_ints
            if p.kind.value == "int array"
            else st.lists(wild | st.none(), max_size=3).map(tuple)
            if p.kind.value == "tensor list"
            else wild
            for p in INPUTS
        },
    ),
    st.fixed_dictionaries(
        {"numHeads": st.sampled_from([0, -1, 1, 3, 8, 2**32 + 8, 2**40])},
        optional={
            "inputLayout": st.sampled_from([*LAYOUTS, "XYZ", ""]) | st.none(),
            "numKeyValueHeads": st.integers(-1, 9),
            "sparseMode": st.integers(-1, 10),
            "blockSize": st.sampled_from([0, -16, 16, 128, 2**32]),
            "pseType": st.integers(-1, 4),
            "scaleValue": st.sampled_from([1.0, "nan", "inf", "-inf", 0]),
            "preTokens": st.integers(-(2**63), 2**63 - 1),
        },
    ),
    st.none() | wild,
    st.none() | wild,
)
def test_any_case_has_a_scene(inputs: dict[str, object], attrs: dict[str, object], out: object, lse: object) -> None:
    case = Case(inputs=Inputs(**inputs), attrs=Attrs(**attrs), outputs=Outputs(out, lse))  # type: ignore[arg-type]
    scene = Scene(case)
    facts = scene.facts()
    assert set(facts) == set(FACTS)
    assert set(factors_of(scene)) == set(FACTORS)
    for fact, why in scene.why.items():
        assert getattr(scene, fact) is None and why
