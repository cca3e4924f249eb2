# Every third-party package of the project, found in one place. A layer links what it is allowed to
# by name (tests/layers.txt says which library may be included where).


set(UNREFT_MISSING "")

# find_package or pkg_check_modules, but all that is missing is told at once, with its packages.
macro(_unreft_need name)
  find_package(${name} ${ARGN} QUIET)
  if(NOT ${name}_FOUND)
    list(APPEND UNREFT_MISSING ${name})
  endif()
endmacro()

# Ends the configuration with the packages that bring what is missing, by packages.txt.
function(_unreft_tell_missing)
  if(NOT UNREFT_MISSING)
    return()
  endif()
  set(os debian-12)
  if(EXISTS /etc/os-release)
    file(STRINGS /etc/os-release ubuntu REGEX "^(ID=ubuntu|VERSION_ID=\"24.04\")$")
    list(LENGTH ubuntu matching)
    if(matching EQUAL 2)
      set(os ubuntu-24.04)
    endif()
  endif()
  list(REMOVE_DUPLICATES UNREFT_MISSING)
  file(STRINGS ${PROJECT_SOURCE_DIR}/tools/setup/packages.txt lines REGEX "^[^#]")
  set(packages "")
  foreach(name IN LISTS UNREFT_MISSING)
    set(found FALSE)
    foreach(line IN LISTS lines)
      string(REGEX REPLACE " +" ";" words "${line}")
      list(GET words 0 package)
      list(GET words 1 system)
      list(GET words 2 brings)
      if(brings STREQUAL name AND system MATCHES "^(\\*|${os})$")
        string(APPEND packages " ${package}")
        set(found TRUE)
      endif()
    endforeach()
    if(NOT found)
      message(SEND_ERROR "tools/setup/packages.txt names no package that brings ${name}")
    endif()
  endforeach()
  string(REPLACE ";" ", " names "${UNREFT_MISSING}")
  message(FATAL_ERROR "Not found on this system: ${names}. On Debian 12 or Ubuntu 24.04 install\n"
    "  apt-get install -y${packages}\n"
    "elsewhere what these packages hold; CMAKE_PREFIX_PATH names other places to look in.")
endfunction()

find_package(Threads REQUIRED)
_unreft_need(PkgConfig)
_unreft_need(Protobuf)                # module mode: Debian has no protobuf-config.cmake
if(NOT Protobuf_PROTOC_EXECUTABLE)
  list(APPEND UNREFT_MISSING Protobuf)
endif()
# Without its plugin or pkg-config gRPC's own file would end the configuration in its own words.
find_program(UNREFT_GRPC_PLUGIN grpc_cpp_plugin)
if(UNREFT_GRPC_PLUGIN AND PkgConfig_FOUND)
  _unreft_need(gRPC CONFIG)           # gRPC::grpc++
else()
  list(APPEND UNREFT_MISSING gRPC)
endif()
_unreft_need(OpenSSL 3.0)             # OpenSSL::Crypto
_unreft_need(RocksDB CONFIG)          # RocksDB::rocksdb-shared
_unreft_need(prometheus-cpp CONFIG)   # prometheus-cpp::core
_unreft_need(spdlog CONFIG)           # spdlog::spdlog
_unreft_need(fmt CONFIG)              # fmt::fmt
_unreft_need(CLI11 CONFIG)            # CLI11::CLI11
_unreft_need(nlohmann_json CONFIG)    # nlohmann_json::nlohmann_json
_unreft_need(absl CONFIG)             # absl::status absl::statusor absl::span ...
_unreft_need(Boost 1.81)              # Boost::headers
_unreft_need(CURL 7.88)               # CURL::libcurl
_unreft_need(pugixml CONFIG)          # pugixml::pugixml
if(PkgConfig_FOUND)
  pkg_check_modules(ISAL QUIET IMPORTED_TARGET libisal)  # PkgConfig::ISAL
endif()
if(NOT ISAL_FOUND)
  list(APPEND UNREFT_MISSING ISAL)
endif()
if(UNREFT_WITH_TESTS)
  _unreft_need(GTest CONFIG)          # GTest::gtest GTest::gmock
endif()
_unreft_tell_missing()

# Optional: the headers of a toolkit of CUDA 13 or later. Without them the client copies host memory
# only, and the test totals say so.
option(UNREFT_WITH_CUDA "Build the CUDA copier if a toolkit is found" ON)
set(UNREFT_CUDA_NOTE "no CUDA toolkit of 13.0 or later found")
if(UNREFT_WITH_CUDA)
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND AND CUDAToolkit_VERSION VERSION_LESS 13.0)
    set(UNREFT_CUDA_NOTE "the CUDA toolkit found is ${CUDAToolkit_VERSION}, needed 13.0 or later")
    set(CUDAToolkit_FOUND FALSE)
  elseif(CUDAToolkit_FOUND)
    set(UNREFT_CUDA_NOTE "")
  endif()
else()
  set(UNREFT_CUDA_NOTE "built with UNREFT_WITH_CUDA=OFF")
endif()
file(WRITE ${PROJECT_BINARY_DIR}/cuda_note.txt "${UNREFT_CUDA_NOTE}")
