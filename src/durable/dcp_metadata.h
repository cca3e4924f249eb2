// The `.metadata` of a directory is by which torch.distributed.checkpoint ("DCP") knows what the
// other files in it have: a pickle of its class Metadata, which is read with torch alone. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/tensor_spec.h"

namespace unreft::durable {

// A key of a dict, or an index of a list.
using PathElement = std::variant<std::string, int64_t>;

// An archive (torch_archive.h) within a file of the directory: `bytes` bytes from byte `at` on. Of
// a tensor it has the box [offset, offset + extent), in elements, one number per dimension.
struct DcpChunk {
  std::vector<uint64_t> offset;
  std::vector<uint64_t> extent;
  std::string file;
  uint64_t at = 0;
  uint64_t bytes = 0;
};

// A tensor, or a value of another type ("bytes" in DCP). A value has one chunk, without offset and
// extent, and neither dtype nor shape.
struct DcpEntry {
  // The elements of the path joined by ".", as DCP itself makes a key of a path when it reads.
  std::string key;
  // Where the entry is in the state dict. Of an int DCP makes the index of a list when it reads.
  std::vector<PathElement> path;
  bool is_tensor = true;
  Dtype dtype = Dtype::kFloat32;
  std::vector<uint64_t> global_shape;  // in elements
  std::vector<DcpChunk> chunks;
};

// The bytes of the file. The same entries have the same bytes. That keys are not there twice, that
// chunks have as many dimensions as their tensor, and that a value has one chunk without any is for
// the caller to see to; the latter two are checked.
std::string EncodeDcpMetadata(std::span<const DcpEntry> entries);

}  // namespace unreft::durable
