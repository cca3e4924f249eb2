# Every third-party package of the project, found in one place. A layer links what it is allowed to
# by name (tests/layers.txt says which library may be included where).

find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)               # module mode: Debian has no protobuf-config.cmake
find_package(gRPC CONFIG REQUIRED)            # gRPC::grpc++
find_package(OpenSSL 3.0 REQUIRED)             # OpenSSL::Crypto
find_package(RocksDB CONFIG REQUIRED)         # RocksDB::rocksdb-shared
find_package(prometheus-cpp CONFIG REQUIRED)  # prometheus-cpp::core
find_package(spdlog CONFIG REQUIRED)          # spdlog::spdlog
find_package(fmt CONFIG REQUIRED)             # fmt::fmt
find_package(CLI11 CONFIG REQUIRED)           # CLI11::CLI11
find_package(nlohmann_json CONFIG REQUIRED)   # nlohmann_json::nlohmann_json
find_package(absl CONFIG REQUIRED)            # absl::status absl::statusor absl::span ...
find_package(Boost 1.81 REQUIRED)             # Boost::headers
find_package(PkgConfig REQUIRED)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)         # PkgConfig::ISAL
if(UNREFT_WITH_TESTS)
  find_package(GTest CONFIG REQUIRED)         # GTest::gtest GTest::gmock
endif()

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
