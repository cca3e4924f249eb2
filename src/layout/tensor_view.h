// TensorView: a TensorSpec whose name and numbers lie elsewhere. Plain data.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/tensor_spec.h"

namespace unreft::layout {

struct TensorView {
  std::string_view name;
  Dtype dtype = Dtype::kFloat32;
  std::span<const uint64_t> global_shape;
  std::span<const uint64_t> offset;
  std::span<const uint64_t> extent;
  uint32_t replica_index = 0;
  uint32_t replica_count = 1;
  bool is_volatile = false;
};

inline TensorView ViewOf(const TensorSpec& spec) {
  return {.name = spec.name,
          .dtype = spec.dtype,
          .global_shape = spec.global_shape,
          .offset = spec.offset,
          .extent = spec.extent,
          .replica_index = spec.replica_index,
          .replica_count = spec.replica_count,
          .is_volatile = spec.is_volatile};
}

inline TensorSpec SpecOf(const TensorView& view) {
  return {.name = std::string(view.name),
          .dtype = view.dtype,
          .global_shape = {view.global_shape.begin(), view.global_shape.end()},
          .offset = {view.offset.begin(), view.offset.end()},
          .extent = {view.extent.begin(), view.extent.end()},
          .replica_index = view.replica_index,
          .replica_count = view.replica_count,
          .is_volatile = view.is_volatile};
}

}  // namespace unreft::layout
