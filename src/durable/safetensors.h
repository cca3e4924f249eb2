// The bytes of a file of safetensors but its data, and of the index beside such files. Pure.
//
//   u64 bytes of the JSON | JSON: the place of each tensor's data | data, one behind the other
//
// A tensor of a file may be a box of a larger one: the metadata say from where on, as the
// HuggingFaceStorageWriter of torch.distributed.checkpoint writes it, and its reader puts the boxes
// of all files together.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor_spec.h"

namespace unreft::durable {

struct SafetensorsEntry {
  std::string key;
  Dtype dtype = Dtype::kFloat32;
  std::vector<uint64_t> offset;  // in the whole tensor, in elements
  std::vector<uint64_t> extent;  // one per dimension, as the offset
};

// "BF16"; empty for a type that the format does not have.
std::string_view SafetensorsDtype(Dtype dtype);

// What readers take of JSON.
inline constexpr uint64_t kSafetensorsJsonBytesMax = 100'000'000;

// All bytes before the data, which begin at a multiple of 8. The data of the entries follow each
// other without gaps; a tensor that begins at no multiple of its element's size cannot be mapped,
// so the larger elements come first. InvalidArgument, naming the tensor, for a type that the format
// does not have and for the key "__metadata__", and for more JSON than readers take.
absl::StatusOr<std::string> SafetensorsHeader(std::span<const SafetensorsEntry> entries);

// The file that says which file has which tensor, by key.
std::string SafetensorsIndex(const std::map<std::string, std::string>& files, uint64_t data_bytes);

}  // namespace unreft::durable
