// An archive is what torch.save writes and torch.load(weights_only=True) reads: a zip of stored
// members with a pickle, and with the data of each tensor in the pickle. Of one tensor there are
// the head and the tail, between which the caller puts the data from wherever they lie. The same
// input has the same bytes. Pure.
//
//   head  archive/data.pkl, byteorder, version; the local header of archive/data/0
//   data  from a multiple of 64 bytes from the beginning of the archive on
//   tail  the data's checksum, the central directory of the zip, its end
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/tensor_spec.h"
#include "durable/plain_value.h"

namespace unreft::durable {

// Where the data of a tensor begin: at a multiple of so many bytes.
inline constexpr uint64_t kArchiveAlignment = 64;

// Of an archive, as the offsets and sizes of its zip have 32 bits.
inline constexpr uint64_t kArchiveBytesMax = UINT32_MAX;

// Data of the one tensor of an archive: the rest is for head and tail.
inline constexpr uint64_t kArchiveDataBytesMax = kArchiveBytesMax - (uint64_t{1} << 20);

// Has one stride per size; both are in elements. Elements may share data or leave gaps.
struct ArchiveTensor {
  Dtype dtype = Dtype::kFloat32;
  std::vector<uint64_t> sizes;
  std::vector<uint64_t> strides;
};

// The bytes from the tensor's first element to the end of its last, gaps included; 0 if a size is
// 0, UINT64_MAX if they are no number of 64 bits.
uint64_t ArchiveDataBytes(const ArchiveTensor& tensor);

// All bytes before the data. That the dtype has a number of ours, that each size has a stride, and
// that ArchiveDataBytes is at most kArchiveDataBytesMax is for the caller to see to: it is checked.
std::string ArchiveHead(const ArchiveTensor& tensor);

// All bytes behind the data, whose ZipCrc32 is given. Its length depends on the tensor alone.
std::string ArchiveTail(const ArchiveTensor& tensor, uint32_t data_crc32);

// The head, the data and the tail.
uint64_t ArchiveBytes(const ArchiveTensor& tensor);

// The checksum of a zip, of `bytes` behind those whose checksum is `crc`; of none it is 0.
uint32_t ZipCrc32(std::span<const std::byte> bytes, uint32_t crc = 0);

// The whole archive of a value, from which torch.load(weights_only=True) makes an equal one of the
// same type: None, bool, int, float, str, bytes, bytearray, list, tuple, set, dict, tensors on the
// host, and of the other kinds OrderedDict, Counter, complex, Size, device and dtype. Every str in
// it is UTF-8, surrogates included. InvalidArgument, naming the kind, for any other kind, for an
// int of more than 255 bytes and for a tensor whose bytes are not those of its sizes; with the
// numbers, for more than kArchiveBytesMax or 65,000 tensors.
absl::StatusOr<std::string> ArchiveOfValue(const PlainValue& value);

}  // namespace unreft::durable
