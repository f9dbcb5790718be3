"""Without the extra ``serve`` the server's modules cannot be imported, nor their doctests run."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("kserve") else ["src/mixup_inference/serving/*"]
