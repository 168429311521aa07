"""Numbers for a plan's lengths: query and key lengths of every batch that stand in the wanted relation.

A batch is a *role* first: fewer ("<"), as many ("=") or more (">") query tokens than keys, and which side is zero.
Roles become numbers that respect what several batches share: an axis, one list entry for all, a shared prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

from .draft import Draft

_REST = {"equal": "=", "q_longer": ">=", "q_shorter": "<=", "mixed": "<=>"}


@dataclass
class Role:
    """What is asked of one batch."""

    sign: str
    q_zero: bool = False
    kv_zero: bool = False


def decide(d: Draft) -> None:
    """Decide prefix, query and key lengths of every batch; Q_S must be known."""
    relation = d.words["length_relation"]
    _prefix(d, relation)
    if relation == "other":
        return
    if d.words["empty"] == "kv":
        q_zero = d.words["q_lengths"] == "zero"
        d.kv_lens = [0] * d.B
        d.q_lens = [0 if q_zero and b == 0 else d.Q_S for b in range(d.B)]
        return
    if d.Q_S == 0:
        _without_queries(d, relation)
        return
    q_shared = d.words["q_lengths"] in ("absent", "one")
    kv_shared = d.words["kv_lengths"] == "one" or (
        d.words["kv_lengths"] == "absent" and (d.storage != "tensor_list" or d.scenario == "mla_prefill_split"))
    roles = _roles(d, relation, q_shared or kv_shared)
    least = d.prefix_len + 1
    most = max(d.Q_S + 2, least + 1, min(400, d.budget // max(1, d.B * d.Q_N * d.Q_S * (d.D + d.DV))))
    if q_shared and kv_shared:
        sign = roles[0].sign
        q = _shared_query(d, roles, least)
        d.q_lens, d.kv_lens = [q] * d.B, [_keys(d, sign, q, least, most)] * d.B
    elif q_shared:
        q = _shared_query(d, roles, least)
        d.q_lens = [q] * d.B
        d.kv_lens = [0 if r.kv_zero else _keys(d, r.sign, q, least, most) for r in roles]
    elif kv_shared:
        c = _shared_keys(d, roles, least, most)
        d.kv_lens = [c] * d.B
        d.q_lens = [_query(d, r, c) for r in roles]
    else:
        _separate(d, roles, least, most)
    if d.prefix_len:
        d.kv_lens = [n - d.prefix_len for n in d.kv_lens]


def _prefix(d: Draft, relation: str) -> None:
    word = d.words["prefix"]
    if word == "none":
        return
    room = d.Q_S - 2 if relation in ("q_longer", "mixed") else d.Q_S - 1 if relation == "equal" else 12
    d.prefix_len = d.source.integer(1, max(1, min(12, room)))
    # A2 and A3 with one query token: the length in force is less than the prefix.
    least = 0 if d.ground.is_950 else 1
    d.prefix_s = d.prefix_len if word == "full" else d.prefix_len + d.source.integer(least, 5)


def _without_queries(d: Draft, relation: str) -> None:
    d.q_lens = [0] * d.B
    zero = d.words["kv_lengths"] == "zero"
    if relation == "equal":
        d.kv_lens = [0] * d.B
    elif d.words["kv_lengths"] == "absent":
        d.kv_lens = [d.source.integer(1, 9)] * d.B
    else:
        d.kv_lens = [0 if zero and b == 0 else d.source.integer(1, 9) for b in range(d.B)]


def _roles(d: Draft, relation: str, shared: bool) -> list[Role]:
    """One role a batch: those that the words need, then others that the relation allows, in some order."""
    q_zero, kv_zero = d.words["q_lengths"] == "zero", d.words["kv_lengths"] == "zero"
    needed: list[Role] = []
    if q_zero and kv_zero:
        if relation == "mixed":
            needed = [Role("<", q_zero=True), Role(">", kv_zero=True)]
        else:
            needed = [Role("=", q_zero=True, kv_zero=True)]
            if relation == "q_longer":
                # The longer one may not take the last key of packed tokens with it.
                keys_elsewhere = not d.packed or d.paged or d.Q_S > 1
                needed += [Role(">", kv_zero=d.Q_S == 1)] + ([] if keys_elsewhere else [Role("=")])
            elif relation == "q_shorter":
                needed.append(Role("<"))
    elif q_zero:
        needed = [Role("<", q_zero=True)] + ([Role(">")] if relation == "mixed" else [])
    elif kv_zero:
        needed = [Role(">", kv_zero=True)] + ([Role("<")] if relation == "mixed" else [])
    else:
        needed = [Role(sign) for sign in {"equal": "=", "q_longer": ">", "q_shorter": "<", "mixed": "<>"}[relation]]
    if d.packed and not any(not r.q_zero for r in needed) and d.Q_S > 0 and len(needed) < d.B:
        needed.append(Role("=" if relation in ("equal", "q_longer") else "<"))
    rest = _rest(d, relation, shared, kv_zero)
    roles = needed + [Role(d.source.choice(rest)) for _ in range(d.B - len(needed))]
    if len(roles) > 1 and d.source.chance(40):
        shift = d.source.integer(1, len(roles) - 1)
        roles = roles[shift:] + roles[:shift]
    return roles


def _rest(d: Draft, relation: str, shared: bool, kv_zero: bool) -> str:
    signs = _REST[relation]
    if d.Q_S == 1:
        # One query token: only a batch without keys could have fewer keys than that.
        signs = signs.replace(">", "") or "="
    if relation == "q_shorter" and (d.prefix_len or shared or _strict(d)):
        return "<"
    if shared and relation == "q_longer" and d.Q_S > 1 and not kv_zero:
        return ">"
    return signs


def _strict(d: Draft) -> bool:
    # V3 document: packed tokens with sparseMode 3 need fewer query tokens than keys in every batch.
    return d.packed and d.words["sparse_mode"] == "3" and not d.ground.is_950


def _shared_query(d: Draft, roles: list[Role], least: int) -> int:
    """One query length for all batches: the axis, or one list entry."""
    if d.words["q_lengths"] == "absent":
        return d.Q_S
    low = 1
    if any(r.sign == ">" and not r.kv_zero for r in roles):
        low = least + 1
    elif any(r.sign == "=" for r in roles):
        low = least
    return d.source.integer(low, d.Q_S) if d.source.chance(50) else d.Q_S


def _shared_keys(d: Draft, roles: list[Role], least: int, most: int) -> int:
    """One key length for all batches: the axis, or one list entry."""
    low = max(least, 2) if any(r.sign == "<" and not r.q_zero for r in roles) else least
    if any(r.sign == ">" for r in roles):
        return d.source.integer(low, d.Q_S - 1)
    if any(r.sign == "=" for r in roles):
        return d.source.integer(low, d.Q_S)
    return _many(d, low, most)


def _query(d: Draft, role: Role, keys: int) -> int:
    """The query length of a batch beside shared keys."""
    if role.q_zero:
        return 0
    if role.sign == "=":
        return keys
    if role.sign == ">":
        return d.source.integer(keys + 1, d.Q_S)
    return d.source.integer(1, min(keys - 1, d.Q_S))


def _keys(d: Draft, sign: str, query: int, least: int, most: int) -> int:
    """The key length (prefix included) of a batch beside its query length."""
    if sign == "=":
        return query
    if sign == ">":
        return d.source.integer(least, query - 1)
    return _many(d, max(query + 1, least), most)


def _many(d: Draft, low: int, high: int) -> int:
    """A length in [low, high]: mostly small, and near the edges of blocks."""
    high = max(low, high)
    size = d.block_size
    if size and low <= size + 1 and size - 1 <= high and d.source.chance(55):
        last = min(high // size, 3 if size < 128 else 1)
        edge = size * d.source.integer(1, max(1, last)) + d.source.choice((0, 1, -1))
        if low <= edge <= high:
            return edge
    return d.source.integer(low, high if d.source.chance(20) else min(high, low + 24))


def _separate(d: Draft, roles: list[Role], least: int, most: int) -> None:
    """Own query and key lengths in every batch; the longest packed query is the one that Q_S names."""
    longest = next((b for b, r in enumerate(roles) if not r.q_zero), None)
    for b, role in enumerate(roles):
        if role.q_zero:
            q = 0
        elif b == longest and (d.packed or d.source.chance(60)):
            q = d.Q_S
        else:
            low = least if role.sign == "=" else least + 1 if role.sign == ">" and not role.kv_zero else 1
            q = d.source.integer(min(low, d.Q_S), d.Q_S)
        if role.kv_zero:
            keys = 0
        elif role.q_zero:
            keys = _many(d, least, most)
        else:
            keys = _keys(d, role.sign, q, least, most)
        d.q_lens.append(q)
        d.kv_lens.append(keys)
