# Finds PyTorch as Horovod's own module does, for a build for CPUs. That module takes a torch with CUDA and a machine with
# nvcc for the wish to use GPUs, and then needs a whole CUDA toolkit; here the answer to both questions is no.
file(READ "${PROJECT_SOURCE_DIR}/cmake/Modules/FindPytorch.cmake" _module)
string(REPLACE "(CUDA_HOME is not None)" "False" _module "${_module}")
string(REPLACE "(ROCM_HOME is not None)" "False" _module "${_module}")
file(WRITE "${CMAKE_BINARY_DIR}/FindPytorchWithoutGpu.cmake" "${_module}")
include("${CMAKE_BINARY_DIR}/FindPytorchWithoutGpu.cmake")
