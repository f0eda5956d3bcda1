"""A simulated CUDA device for a CPU build of PyTorch 2.13.

    simgpu.activate()                                  # before torch is imported
    torch.ones(3, device="cuda") + torch.ones(3)       # RuntimeError, as on a GPU
    with simgpu.record() as waits: ...                 # (kind, operator, line): times

Kernels are registered for the real CUDA dispatch key (simgpu.cpp): each checks devices
and generators as CUDA's do, computes on the CPU, and tells when the host would wait.
Which operators have one, and what they ask, is read from PyTorch's own list; another
raises, as on a GPU. After a device-side assertion every later call raises.

What it cannot see: wrong numbers of CUDA's kernels and the order in which they add,
races, out of memory, dtypes and sizes that only a CUDA kernel refuses, and time.
`SIMGPU_SAME_DICE=1`: the CPU's random numbers.
"""

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

SOURCE, TORCH = Path(__file__).with_suffix(".cpp"), metadata.version("torch")
COMPILER = os.environ.get("CXX", "g++")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
BY_HAND = """empty.memory_format empty_strided copy_ resize_ set_.source_Storage
set_.source_Storage_storage_offset set_.source_Tensor set_ record_stream _grouped_mm
histc multinomial""".split()
INDEXING = r"(index|_index_put_impl_|index_put_?|_unsafe_index.*)(\.|$)"
EXACT, ITERATOR, _, INDEX, FUSED = range(5)  # how devices are checked, see simgpu.cpp


def missing() -> str:
    """Why it cannot run here; empty if it can."""
    if TORCH != "2.13.0+cpu":
        return f"the simulated device is for torch 2.13.0+cpu, not {TORCH}"
    return "" if shutil.which(COMPILER) else f"there is no compiler {COMPILER!r}"


def _folder(package: str) -> Path:
    return Path(importlib.util.find_spec(package).origin).parent


def build() -> Path:
    """simgpu.cpp compiled, which takes half a minute or more; kept for next time."""
    key, torch = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12], _folder("torch")
    target = CACHE / "refimpl-simgpu" / f"{TORCH}-{key}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")
        include = torch / "include", torch / "include/torch/csrc/api/include"
        flags = "-O1 -shared -fPIC -std=c++20".split()
        command = [COMPILER, *flags, SOURCE, "-o", made]
        command += (f"-I{x}" for x in (*include, sysconfig.get_paths()["include"]))
        command += "-DTORCH_EXTENSION_NAME=simgpu_ext -ltorch -ltorch_cpu -lc10".split()
        subprocess.run([*command, "-ltorch_python", f"-L{torch}/lib"], check=True)
        made.replace(target)
    return target


def operators() -> dict[str, int]:
    """The operators that a GPU build has a CUDA kernel for, and their checks."""
    from torchgen.gen import parse_native_yaml
    from torchgen.model import DispatchKey

    folder = _folder("torchgen") / "packaged/ATen/native"
    files = [str(folder / f"{name}.yaml") for name in ("native_functions", "tags")]
    parsed, found = parse_native_yaml(*files), {}
    known = {str(f.func.name): f for f in parsed.native_functions}
    kernels = parsed.backend_indices
    here = [x for key, x in kernels.items() if re.match("CPU$|Composite", key.name)]
    for name, f in known.items():
        of = known[str(f.structured_delegate)] if f.structured_delegate else f
        cuda = kernels[DispatchKey.CUDA].has_kernel(of) and name not in BY_HAND
        if cuda and any(index.has_kernel(of) for index in here):
            found[name] = EXACT if f.device_check.name == "ExactSame" else ITERATOR
            if re.match(INDEXING, name):
                found[name] = INDEX
            elif name.startswith("_fused_"):
                found[name] = FUSED
    return found


def activate() -> None:
    """Turn it on, once per process: torch asks for CUDA's hooks when it is imported."""
    if "torch" in sys.modules:
        raise ImportError("torch was imported before the simulated device")
    path, lib = build(), _folder("torch") / "lib"
    needed = (lib / f"lib{n}.so" for n in "c10 torch_cpu torch torch_python".split())
    for library in (*needed, path):
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    import torch

    spec = importlib.util.spec_from_file_location("simgpu_ext", path)
    extension = sys.modules["simgpu_ext"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    checks = operators()
    extension.install([*checks], [*checks.values()])
    # What torch.cuda asks of a driver, and what a CPU build refuses.
    gpu = SimpleNamespace(name="simulated", total_memory=80 * 2**30, major=9, minor=0)
    answers = {"is_available": True, "device_count": 1, "current_device": 0}
    answers |= {"get_device_properties": gpu, "get_device_capability": (9, 0)}
    answers |= {"_lazy_init": None, "_is_compiled": True, "set_device": None}
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    graphs = importlib.import_module(f"{__package__}.graphs".lstrip("."))
    for name, made in graphs.CUDA.items():
        setattr(torch.cuda, name, made)
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: extension.alive()
    torch.cuda.max_memory_allocated = lambda *_: extension.memory()[1]
    torch.cuda.reset_peak_memory_stats = lambda *_: extension.reset_peak()
    torch._C._cuda_getCurrentRawStream, torch.version.cuda = lambda _: 0, "simulated"

    def clone(storage):
        made = torch.empty(storage.nbytes(), dtype=torch.uint8, device=storage.device)
        return made.untyped_storage().copy_(storage)

    torch.storage._StorageBase.clone = clone


@contextlib.contextmanager
def record():
    """Counts what the host waits for in here, by kind, operator and line of refimpl.

    `sync`: a number or a size is asked for; `D2H`, `H2D`: copies down and up."""
    waits: Counter = Counter()

    def call(operator: bytes, kind: bytes) -> None:
        frame = sys._getframe() if kind else None
        while frame and "/refimpl/" not in frame.f_code.co_filename:
            frame = frame.f_back
        if kind:  # a backward pass has a thread of its own
            file = frame.f_code.co_filename.split("/refimpl/")[-1] if frame else ""
            line = f"{file}:{frame.f_lineno}" if frame else "elsewhere"
            waits[kind.decode(), operator.decode(), line] += 1

    function = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)(call)
    set_callback = sys.modules["simgpu_ext"].set_callback
    set_callback(ctypes.cast(function, ctypes.c_void_p).value)
    try:
        yield waits
    finally:
        set_callback(0)
