// JobLayout: which shards each rank of a job would restore, as a dry run writes it and `unreft plan
// --layout` reads it (docs/formats/layout_file.md). Plain data; the text is made here, without any
// library, since training processes write it. smp/node/layout_reader.h reads it.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/tensor_spec.h"

namespace unreft::layout {

// Of the text; a reader takes what says that its format or an earlier one is enough for it.
inline constexpr uint64_t kLayoutFormat = 1;
inline constexpr uint64_t kLayoutMinReader = 1;

inline constexpr uint64_t kLayoutWorldMax = uint64_t{1} << 20;

// A name in a layout may be a pattern, for what a program finds out from the store alone:
//   x/*       whatever is stored by a name that begins with "x/", if anything is: a shard of the
//             same box if its global shape is the pattern's, else all of it
//   x?        x, if it is stored
//   rank*/x   each rank's own: that of this rank, or those of all ranks that stored the version if
//             these are of another number
inline constexpr std::string_view kAllBeneath = "/*";
inline constexpr std::string_view kIfStored = "?";
inline constexpr std::string_view kEachRanks = "rank*/";
// What follows it in a name is not of the pattern, but of how the tensor lies in memory
// (layout/memory_order.h).
inline constexpr std::string_view kOrderMark = "[memory_order=";

struct RankLayout {
  Rank rank;
  uint64_t node = 0;       // slot of the node that it would be of
  bool any_world = false;  // whether it restores what another number of ranks has saved
  std::vector<TensorSpec> shards;

  friend bool operator==(const RankLayout&, const RankLayout&) = default;
};

struct JobLayout {
  std::string job;
  uint64_t world = 0;
  std::vector<RankLayout> ranks;   // some of the world's; none twice
  std::vector<TensorSpec> others;  // whole, of ranks that are not among these

  friend bool operator==(const JobLayout&, const JobLayout&) = default;
};

// Of the file in which a rank says its own layout.
std::string RankFileName(Rank rank);

// "float32 [20, 7]"
std::string KindText(const TensorSpec& spec);

// As JSON, on one line. Replicas' numbers and whether a tensor is volatile are no part of it.
std::string ToJson(const JobLayout& layout);

// InvalidArgument, naming ranks, tensors and numbers, unless job and world are named well, each
// rank is below the world and there once, its shards are those of a layout::TensorTable, and
// tensors of one name are of one dtype and global shape on all ranks, unless each has its own.
absl::Status CheckLayout(const JobLayout& layout);

// FailedPrecondition, naming the first of them and their number, if ranks of the world lack.
absl::Status CheckAllThere(const JobLayout& layout);

}  // namespace unreft::layout
