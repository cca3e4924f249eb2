// Brings a rank's slab back from a durable copy into memory, byte for byte as it was captured, each
// item against the CRC32C that was taken of its data when they were written.
//
// Of an item's archive the data alone are read: what stands around them is for PyTorch, and its
// length follows from the tensor.
#pragma once

#include <absl/status/status.h>
#include <unreft/copy.pb.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "durable/copy_reader.h"
#include "durable/part_writer.h"

namespace unreft::durable {

// Fills `data` with the slab that `slab` describes (CopyReader::Describe), and with zeros where it
// has no part. `data` has the whole blocks of the slab at least: InvalidArgument, with the numbers,
// if it does not. `on_progress` hears how many bytes of parts are in their place, and of how many;
// Cancelled when it says false. When it fails, nothing can be said of what `data` has.
//
// DataLoss, naming file, tensor and both CRCs, for an item whose data are not what was written; and
// naming the rank and the tensor, for a part that the copy does not have.
//
// Where every replica has captured all (CaptureMode::kFull) the copy has a tensor in the file of
// its first replica alone, and it is the first replica's bytes that a slab of another gets: its
// own, had they been others, are not in the copy. Only for a slab that is another replica, the
// records of ranks are read from rank 0 on until each of its tensors is found: a file each of the
// size of a manifest and the extras, of at most all ranks. `copy` keeps what they say
// (CopyReader::KeptItems), so that of several slabs that are loaded with one reader each such file
// is read once.
absl::Status LoadSlab(CopyReader& copy, const CopySlab& slab, std::span<std::byte> data,
                      OnProgress on_progress);

// The CRC32C of each of the first `blocks` blocks of `data`, which has them whole: it is checked.
std::vector<uint32_t> BlockCrcs(std::span<const std::byte> data, uint64_t block_bytes,
                                uint64_t blocks);

}  // namespace unreft::durable
