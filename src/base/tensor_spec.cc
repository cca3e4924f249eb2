#include "base/tensor_spec.h"

#include <fmt/format.h>

#include <array>

namespace unreft {
namespace {

struct DtypeInfo {
  Dtype dtype;
  uint32_t bytes;
  std::string_view name;
};

// In the order of their numbers.
constexpr std::array kDtypes = {
    DtypeInfo{Dtype::kBool, 1, "bool"},
    DtypeInfo{Dtype::kUint8, 1, "uint8"},
    DtypeInfo{Dtype::kInt8, 1, "int8"},
    DtypeInfo{Dtype::kInt16, 2, "int16"},
    DtypeInfo{Dtype::kInt32, 4, "int32"},
    DtypeInfo{Dtype::kInt64, 8, "int64"},
    DtypeInfo{Dtype::kFloat16, 2, "float16"},
    DtypeInfo{Dtype::kBfloat16, 2, "bfloat16"},
    DtypeInfo{Dtype::kFloat32, 4, "float32"},
    DtypeInfo{Dtype::kFloat64, 8, "float64"},
    DtypeInfo{Dtype::kFloat8E4m3, 1, "float8_e4m3fn"},
    DtypeInfo{Dtype::kFloat8E5m2, 1, "float8_e5m2"},
    DtypeInfo{Dtype::kComplex64, 8, "complex64"},
    DtypeInfo{Dtype::kComplex128, 16, "complex128"},
    DtypeInfo{Dtype::kUint16, 2, "uint16"},
    DtypeInfo{Dtype::kUint32, 4, "uint32"},
    DtypeInfo{Dtype::kUint64, 8, "uint64"},
};

constexpr size_t PlaceOf(Dtype dtype) { return static_cast<size_t>(dtype) - 1; }

constexpr bool AreInPlace() {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (PlaceOf(kDtypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(AreInPlace());

// Asked of every tensor of every rank.
const DtypeInfo* Find(Dtype dtype) {
  const size_t place = PlaceOf(dtype);
  return place < kDtypes.size() ? &kDtypes[place] : nullptr;
}

}  // namespace

uint32_t DtypeBytes(Dtype dtype) {
  const DtypeInfo* info = Find(dtype);
  return info ? info->bytes : 0;
}

std::string DtypeName(Dtype dtype) {
  const DtypeInfo* info = Find(dtype);
  return info ? std::string(info->name) : fmt::format("dtype {}", static_cast<int>(dtype));
}

uint64_t ShardElements(const TensorSpec& spec) {
  uint64_t elements = 1;
  for (uint64_t extent : spec.extent) elements *= extent;
  return elements;
}

uint64_t ShardBytes(const TensorSpec& spec) { return ShardElements(spec) * DtypeBytes(spec.dtype); }

}  // namespace unreft
