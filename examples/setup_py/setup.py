"""torch's own build of extensions, as any CUDA project has it; rocmbuild runs it with torch's ROCm code path."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="setup_py_example",
    version="1.0",
    packages=["setup_py_example"],
    ext_modules=[
        CUDAExtension(
            "setup_py_example._C",
            ["csrc/axpy.cu"],
            include_dirs=["csrc"],
            extra_compile_args={"cxx": ["-O2"], "nvcc": ["-O3"]},
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
