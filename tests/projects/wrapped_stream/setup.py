from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="wrapped_stream",
    version="1.0",
    packages=["wrapped_stream"],
    ext_modules=[
        CUDAExtension(
            "wrapped_stream._C",
            ["csrc/scale.cu", "csrc/offset.cu"],
            extra_compile_args={"cxx": ["-O2"], "nvcc": []},
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
