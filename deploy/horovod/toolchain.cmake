# Horovod 0.28.1 sets C++14 itself, after every flag and cache entry, and newer torch headers need more. What runs after
# each project() can still say what "C++14" means: CMake reads the name of that file here, from 3.21 on.
set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/cxx-standard.cmake")
if(NOT "$ENV{HOROVOD_FOR_GPU}")
    list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}/cpu")
endif()
