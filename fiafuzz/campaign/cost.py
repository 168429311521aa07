"""How long the reference and a CPU kernel will take over a call, roughly, so that one giant does not eat the time of
thousands."""

from __future__ import annotations

from fiafuzz.model.scene import Scene

FLOPS = 1.5e9
"""Multiply-adds a second of float64 work on one core, everything included."""
BATCH_SECONDS = 2e-4
"""What each batch costs whatever its size: Python works batch by batch."""
BYTES_SECONDS = 1.0 / 2e8
"""Making one element of input."""


GIANT_SHARE = 0.4
"""Cases that are likely to take more than this share of the time limit are not judged, and run only where checks are
real."""


def estimated_seconds(scene: Scene) -> float:
    """Rough seconds for tensors, reference and a CPU kernel of a call; 0 where its sizes are unknown."""
    q, kv = scene.q_lens, scene.kv_lens
    if not q or not kv or len(q) != len(kv) or scene.Q_D is None:
        return 0.0
    width = scene.Q_D + (scene.V_D or scene.Q_D)
    work = scene.Q_N * width * sum(max(0, a) * (max(0, b) + scene.prefix_len) for a, b in zip(q, kv))
    tokens = scene.Q_N * sum(q) + max(1, scene.KV_N) * sum(kv)
    return work / FLOPS + len(q) * BATCH_SECONDS + tokens * width * BYTES_SECONDS
