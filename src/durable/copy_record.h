// The files of a durable copy, and the frame of those that are ours: docs/formats/durable_copy.md.
// Pure.
//
//   .unreft/order      written first, by who orders the copy
//   .unreft/ready_0 .. each node has seen it
//   .unreft/go         all have: the parts are written
//   __0_0.distcp ...   the items of each rank
//   .unreft/rank_0 ... what each rank's file has
//   __values_0.distcp  hyperparameters and extras
//   .unreft/copy       the whole copy is there
//   .metadata          written last: it is the commit mark, to PyTorch and to us
//
// Of a copy in safetensors there are others in the place of the last two and of those of the ranks:
//
//   incomplete.safetensors   written after the order, and removed last: whoever reads all files of
//                            that ending fails as long as it is there, since it is none
//   model-rank00000-of-00008-part1.safetensors ...
//                            the weights of each rank
//   model.safetensors.index.json
//                            which file has which tensor, where each is whole in one
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/copy.pb.h>

#include <string>
#include <string_view>

#include "base/ids.h"

namespace unreft::durable {

inline constexpr char kOwnDirectory[] = ".unreft";
inline constexpr char kOrderFile[] = ".unreft/order";
inline constexpr char kGoFile[] = ".unreft/go";
inline constexpr char kRecordFile[] = ".unreft/copy";
inline constexpr char kValuesFile[] = "__values_0.distcp";
inline constexpr char kMetadataFile[] = ".metadata";
inline constexpr std::string_view kWeightFileEnd = ".safetensors";
inline constexpr char kIncompleteFile[] = "incomplete.safetensors";
inline constexpr char kIndexFile[] = "model.safetensors.index.json";

std::string ItemsFile(Rank rank);
std::string SlabFile(Rank rank);
std::string ReadyFile(NodeSlot node);
// Of the rank's files of weights, the first is part 1.
std::string WeightFileName(Rank rank, uint64_t world, uint64_t part);
bool IsWeightFileOf(std::string_view file, Rank rank, uint64_t world);

// A CopySlab has the manifest, the extras and a CRC for each item of a rank.
inline constexpr uint64_t kRecordBytesMax = uint64_t{1} << 30;

std::string EncodeOrder(const CopyOrder& order);
std::string EncodeSlab(const CopySlab& slab);
std::string EncodeRecord(const CopyRecord& record);
std::string EncodeReady(const CopyReady& ready);
std::string EncodeGo(const CopyGo& go);

// DataLoss, naming `file`, for bytes that are not such a file, or are damaged; FailedPrecondition
// for a format that only a newer release reads.
absl::StatusOr<CopyOrder> DecodeOrder(std::string_view bytes, std::string_view file);
absl::StatusOr<CopySlab> DecodeSlab(std::string_view bytes, std::string_view file);
absl::StatusOr<CopyRecord> DecodeRecord(std::string_view bytes, std::string_view file);
absl::StatusOr<CopyReady> DecodeReady(std::string_view bytes, std::string_view file);
absl::StatusOr<CopyGo> DecodeGo(std::string_view bytes, std::string_view file);

}  // namespace unreft::durable
