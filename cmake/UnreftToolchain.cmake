# How everything is compiled: language, build type, cache, linker, warnings, sanitizers.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()
# Line tables are what a backtrace of a release build needs; all of -g takes a third more of the
# compiler's time. The debug preset has all.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
option(UNREFT_WITH_TESTS "Build the C++ tests" ON)
option(UNREFT_WITH_PYTHON "Build the Python module" ON)
option(UNREFT_WERROR "Treat every warning as an error" OFF)
set(UNREFT_SANITIZE "" CACHE STRING
    "Sanitizers: empty, 'address,undefined', 'thread'; with 'fuzzer-no-link' for fuzzers (clang)")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

# ccache with paths relative to the source tree, so that another clone shares the cache.
find_program(UNREFT_CCACHE ccache)
if(UNREFT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      ${UNREFT_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

include(CheckLinkerFlag)
find_program(UNREFT_MOLD mold)
if(UNREFT_MOLD)
  check_linker_flag(CXX -fuse-ld=mold UNREFT_LINKER_IS_MOLD)
  if(UNREFT_LINKER_IS_MOLD)
    add_link_options(-fuse-ld=mold)
  endif()
endif()

add_compile_options(-fno-omit-frame-pointer)

# Third-party headers are all SYSTEM, so these speak of our code only. They are private to the
# targets made by UnreftTargets: generated protobuf code is compiled without them.
set(UNREFT_WARNINGS
    -Wall -Wextra -Wpointer-arith -Wcast-qual -Wvla -Wundef
    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>
    $<$<COMPILE_LANGUAGE:CXX>:-Wsuggest-override> $<$<COMPILE_LANGUAGE:CXX>:-Wextra-semi>
    -Werror=return-type -Werror=uninitialized -Werror=format -Werror=unused-result
    $<$<COMPILE_LANGUAGE:CXX>:-Werror=delete-non-virtual-dtor>
    # Partial designated initialisers are how Options and frames are written.
    -Wno-missing-field-initializers)
if(UNREFT_WERROR)
  list(APPEND UNREFT_WARNINGS -Werror)
endif()

set(UNREFT_TEST_TIMEOUT_FACTOR 1)
if(UNREFT_SANITIZE)
  add_compile_options(-fsanitize=${UNREFT_SANITIZE} -g1 -O1)
  add_link_options(-fsanitize=${UNREFT_SANITIZE})
  if(UNREFT_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
      # Not of what Debian's gRPC and protobuf do, which are not instrumented.
      add_compile_options(-fno-sanitize=vptr,function)
    endif()
  endif()
  if(UNREFT_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)  # Boost.Asio's fences
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # With a sanitizer's code in between it finds what is not there, in temporaries and in <regex>.
    list(APPEND UNREFT_WARNINGS -Wno-maybe-uninitialized)
  endif()
  set(UNREFT_TEST_TIMEOUT_FACTOR 5)
  set(UNREFT_WITH_PYTHON OFF)  # an interpreter without sanitizer cannot load the module
endif()
