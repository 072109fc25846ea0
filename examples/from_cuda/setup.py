from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="row_softmax",
    version="0.3.1",
    packages=["row_softmax"],
    ext_modules=[CUDAExtension("row_softmax._C", ["csrc/binding.cpp", "csrc/softmax.cu", "csrc/scale.cu"])],
    cmdclass={"build_ext": BuildExtension},
)
