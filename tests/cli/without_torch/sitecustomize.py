"""Python imports this at start-up when its folder is on the path: a machine on which torch is not installed."""

from importlib.machinery import PathFinder

_find = PathFinder.find_spec


def _find_all_but_torch(name, path=None, target=None):
    return None if name.partition(".")[0] == "torch" else _find(name, path, target)


PathFinder.find_spec = _find_all_but_torch
