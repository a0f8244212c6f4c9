# Included after each project(), see toolchain.cmake. HOROVOD_CXX_STANDARD: what the torch at hand is built with (build.py).
set(_standard "$ENV{HOROVOD_CXX_STANDARD}")
foreach(_asked 11 14 17)
    if(_asked LESS _standard)
        set(CMAKE_CXX${_asked}_STANDARD_COMPILE_OPTION "-std=c++${_standard}")
        set(CMAKE_CXX${_asked}_EXTENSION_COMPILE_OPTION "-std=gnu++${_standard}")
    endif()
endforeach()
# Without -g: debug information is 18 of the 19 MB and a quarter of the time. Horovod makes -O3 of -O2.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG")
