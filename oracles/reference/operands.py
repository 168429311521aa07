"""Query, key and value of a run as float64, whatever their storage: the part of the reference that quantisation
replaces.
"""

from __future__ import annotations

import numpy as np

from fiafuzz.model.codecs import decode, unpack_int4
from fiafuzz.model.parameters import TENSOR_LISTS

from .expected import F64, ReferenceError, Stored
from .problem import Problem, Run
from .storage import block_ids, cache_heads, heads_first, packed_rows, padded_rows, paged_rows


class Operands:
    """Unquantised operands: decoded, rope concatenated, prefix before the own columns.

    ``query`` (batches, KV_N, G, rows, D) is multiplied by the scale, which moves no bit of a float64 reference
    that matters (the operator multiplies the sum, spec/numerics.md 2).
    """

    lse_shift = 0.0
    """What the operator's lse holds beyond ln of the sum of exponentials."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.scene = problem.scene
        self.rope = self.scene.rope_on

    # ---- what attention asks for ----------------------------------------------------------------

    def query(self, run: Run) -> F64:
        """Scaled query rows: (batches, KV_N, G, rows, D + rope D)."""
        q = self.query_numbers(run)
        q *= self.problem.scale
        return q

    def query_numbers(self, run: Run) -> F64:
        """Query rows with rope, without the scale: (batches, KV_N, G, rows, D + rope D)."""
        q = self.numbers("query", self.query_rows("query", run))
        if self.rope:
            q = np.concatenate([q, self.numbers("queryRope", self.query_rows("queryRope", run))], axis=-1)
        return self.grouped(q, run)

    def key(self, run: Run) -> F64:
        """Key columns, prefix first: (batches, KV_N, prefix + cols, D + rope D)."""
        k = self.side("key", run)
        if self.rope:
            k = np.concatenate([k, self.side("keyRope", run)], axis=-1)
        return k

    def value(self, run: Run, key: F64) -> F64:
        """Value columns: (batches, KV_N, prefix + cols, V_D).

        Decode MLA never reads the value tensor: its value is the part of key without rope (spec/numerics.md 4).
        """
        if self.scene.mla_kind == "decode":
            return np.ascontiguousarray(key[..., : self.problem.D])
        return self.side("value", run)

    # ---- storage ---------------------------------------------------------------------------------

    def grouped(self, q: F64, run: Run) -> F64:
        """(batches, Q_N, rows, D) -> (batches, KV_N, G, rows, D): query head n reads key head n // G."""
        return q.reshape(run.count, run.heads.stop - run.heads.start, self.problem.G, run.rows, q.shape[-1])

    def numbers(self, name: str, stored: Stored) -> F64:
        """Decode rows of a tensor by its dtype in the case (INT4 out of INT32 is int8 by now)."""
        if stored.dtype == np.float16 or stored.dtype == np.int8:
            return stored.astype(np.float64, order="C")
        return np.asarray(decode(self.problem.dtype(name), np.ascontiguousarray(stored)), dtype=np.float64)

    def query_rows(self, name: str, run: Run) -> Stored:
        """Stored rows of query or queryRope: (batches, Q_N of the run, rows, D)."""
        p = self.problem
        view = heads_first(p.stored(name), p.layout.inputs, p.Q_N)
        heads = slice(run.heads.start * p.G, run.heads.stop * p.G)
        if self.scene.packed:
            return packed_rows(view, run.q_offset, run.count, run.rows, heads)
        return padded_rows(view, run.first, run.count, run.q_begin, run.rows, heads)

    def own_rows(self, name: str, run: Run) -> Stored:
        """Stored own columns of key, value or keyRope: (batches, KV_N of the run, cols, D), INT4 unpacked."""
        p = self.problem
        index = run.first if self.scene.storage == "tensor_list" and name in TENSOR_LISTS else 0
        stored = p.stored(name, index)
        if self.scene.paged:
            return self.unpacked(name, paged_rows(stored, p.KV_N, self.ids(run, stored), run.cols, run.heads))
        view = heads_first(stored, p.layout.inputs, p.KV_N)
        if self.scene.packed:
            return self.unpacked(name, packed_rows(view, run.k_offset, run.count, run.cols, run.heads))
        first = 0 if self.scene.storage == "tensor_list" and name in TENSOR_LISTS else run.first
        return self.unpacked(name, padded_rows(view, first, run.count, run.k_begin, run.cols, run.heads))

    def ids(self, run: Run, cache: Stored) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
        """Cache blocks of a run: (batches, blocks needed)."""
        size = cache_heads(cache, self.problem.KV_N)[1]
        if size != self.scene.block_size:
            raise ReferenceError(f"blockSize {self.scene.block_size} differs from the {size} rows of a cache block")
        return block_ids(self.problem.stored("blockTable"), run.first, run.count, run.cols, size, cache.shape[0])

    def prefix_rows(self, name: str, run: Run) -> Stored:
        """Stored prefix columns of keySharedPrefix or valueSharedPrefix: (1, KV_N of the run, prefix, D)."""
        view = heads_first(self.problem.stored(name), self.problem.layout.inputs, self.problem.KV_N)
        return self.unpacked(name, padded_rows(view, 0, 1, 0, run.prefix, run.heads))

    def unpacked(self, name: str, stored: Stored) -> Stored:
        """INT4 that travels in INT32 as one value per int8; anything else as it is."""
        if self.scene.int4_carrier and self.problem.dtype(name) == "INT32":
            return unpack_int4(stored)
        return stored

    def side(self, name: str, run: Run) -> F64:
        """Key, value or keyRope columns as float64, prefix before the own ones (spec/numerics.md 12)."""
        own = self.widened(name, self.own_rows(name, run), run, prefix=False) if run.cols else None
        if run.prefix == 0:
            assert own is not None
            return own
        shared = f"{name}SharedPrefix"
        before = self.widened(shared, self.prefix_rows(shared, run), run, prefix=True)
        before = np.broadcast_to(before, (run.count, *before.shape[1:]))
        return np.ascontiguousarray(before) if own is None else np.concatenate([before, own], axis=2)

    def widened(self, name: str, stored: Stored, run: Run, *, prefix: bool) -> F64:
        """Stored key or value columns as float64; quantised operands scale them here."""
        return self.numbers(name, stored)
