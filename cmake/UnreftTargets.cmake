# The three kinds of target. DEPS are CMake target names (unreft_base, spdlog::spdlog, ...).
#
#   unreft_library(base SRCS executor.cc ... HDRS executor.h ... DEPS absl::status ...
#                  [PRIVATE_DEPS RocksDB::rocksdb-shared ...])
#     -> static library unreft_base, position independent.
#   unreft_binary(unreftd SRCS main.cc DEPS unreft_smp)
#     -> ${PROJECT_BINARY_DIR}/bin/unreftd
#   unreft_test(executor_test SRCS executor_test.cc DEPS unreft_base
#               [LABELS unit] [TIMEOUT 60] [ENVIRONMENT A=b] [WHOLE])
#     -> ${PROJECT_BINARY_DIR}/tests/executor_test; every GoogleTest case is one ctest test, or with
#        WHOLE the executable is.
#
# Includes are "base/executor.h" (root src/), <unreft/c.h> (root include/) and, in tests/ only,
# "tests/fakes/...". Every test runs with UNREFT_BIN_DIR and UNREFT_SOURCE_DIR set.

include(GoogleTest)

function(unreft_add_directory dir)
  if(dir MATCHES "^tests" AND NOT UNREFT_WITH_TESTS)
    return()
  endif()
  if(dir STREQUAL "integrations/python" AND NOT UNREFT_WITH_PYTHON)
    return()
  endif()
  if(EXISTS ${PROJECT_SOURCE_DIR}/${dir}/CMakeLists.txt)
    add_subdirectory(${PROJECT_SOURCE_DIR}/${dir} ${PROJECT_BINARY_DIR}/${dir}.dir)
    return()
  endif()
  # No file of its own: take the subdirectories that have one (tools/cli, tests/unit, ...).
  file(GLOB children CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${dir}/*/CMakeLists.txt)
  foreach(file IN LISTS children)
    get_filename_component(child ${file} DIRECTORY)
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${child})
    if(NOT name STREQUAL "tests/setup")  # named in the root, it needs nothing of the rest
      add_subdirectory(${child} ${PROJECT_BINARY_DIR}/${name}.dir)
    endif()
  endforeach()
endfunction()

function(_unreft_defaults target)
  target_compile_options(${target} PRIVATE ${UNREFT_WARNINGS})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src
                             ${PROJECT_SOURCE_DIR}/include)
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/tests")
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  endif()
endfunction()

function(unreft_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SRCS;HDRS;DEPS;PRIVATE_DEPS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "unreft_library(${name}): unknown ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(target unreft_${name})
  if(arg_SRCS)
    add_library(${target} STATIC ${arg_SRCS} ${arg_HDRS})
    _unreft_defaults(${target})
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE ${arg_PRIVATE_DEPS})
  else()
    add_library(${target} INTERFACE ${arg_HDRS})
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} ${PROJECT_SOURCE_DIR}/src
                             ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${target} ${scope} ${arg_DEPS} Threads::Threads)
endfunction()

function(unreft_binary name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SRCS;HDRS;DEPS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "unreft_binary(${name}): unknown ${arg_UNPARSED_ARGUMENTS}")
  endif()
  # The target may not be called like the library 'unreft'; the file is.
  add_executable(${name}_bin ${arg_SRCS} ${arg_HDRS})
  # Libraries that are shipped with a program lie beside it; by the old tag they find each other.
  set_target_properties(${name}_bin PROPERTIES
    OUTPUT_NAME ${name} BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../lib")
  target_link_options(${name}_bin PRIVATE -Wl,--disable-new-dtags)
  _unreft_defaults(${name}_bin)
  target_link_libraries(${name}_bin PRIVATE ${arg_DEPS} Threads::Threads)
endfunction()

function(unreft_test name)
  if(NOT UNREFT_WITH_TESTS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "WHOLE;ALONE" "TIMEOUT"
                        "SRCS;HDRS;DEPS;LABELS;ENVIRONMENT")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "unreft_test(${name}): unknown ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  math(EXPR timeout "${arg_TIMEOUT} * ${UNREFT_TEST_TIMEOUT_FACTOR}")
  set(alone OFF)  # no other test beside it: it takes all cores
  if(arg_ALONE)
    set(alone ON)
  endif()

  add_executable(${name} ${arg_SRCS} ${arg_HDRS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  _unreft_defaults(${name})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gmock_main GTest::gmock GTest::gtest
                        Threads::Threads)

  set(tsan "ignore_noninstrumented_modules=1:second_deadlock_stack=1")
  string(APPEND tsan ":suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp")
  set(environment
      UNREFT_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY} UNREFT_SOURCE_DIR=${PROJECT_SOURCE_DIR}
      ${arg_ENVIRONMENT}
      ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
      UBSAN_OPTIONS=print_stacktrace=1
      LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0
      # Debian's gRPC, RocksDB and absl are not instrumented; everything of ours is.
      TSAN_OPTIONS=${tsan})
  if(arg_WHOLE)
    add_test(NAME ${name} COMMAND ${name})
    if(UNREFT_SANITIZE MATCHES "thread")  # what the preset's filter leaves out of the others
      list(APPEND environment "GTEST_FILTER=-Grpc*:Embedded*:Etcd*")
    endif()
    set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} LABELS "${arg_LABELS}"
                         RUN_SERIAL ${alone} ENVIRONMENT "${environment}" SKIP_RETURN_CODE 77)
  else()
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                         NO_PRETTY_VALUES  # a value printed as bytes differs from run to run
                         TEST_PREFIX "${name}:" TEST_LIST ${name}_cases)
    # gtest_discover_tests flattens a property that is a list; all are set once the cases are known.
    file(CONFIGURE OUTPUT ${name}_properties.cmake @ONLY CONTENT [=[
if(@name@_cases)
  set_tests_properties(${@name@_cases} PROPERTIES TIMEOUT @timeout@ LABELS "@arg_LABELS@"
                       RUN_SERIAL @alone@ ENVIRONMENT "@environment@")
endif()
]=])
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES
                 ${CMAKE_CURRENT_BINARY_DIR}/${name}_properties.cmake)
  endif()
endfunction()

