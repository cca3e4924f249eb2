#include "durable/slab_loader.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/format.h"
#include "base/slot_header.h"
#include "base/text.h"
#include "durable/torch_archive.h"

namespace unreft::durable {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{4} << 20;

// An item to be read, and where in the slab its data come to lie.
struct Load {
  const SlabItems* from = nullptr;
  size_t item = 0;
  uint64_t slab_offset = 0;
};

// The items of the part, which is copied, with its bytes to begin at `slab_offset` of a slab.
void AddItems(const SlabItems& from, const layout::CapturedPart& part, uint64_t slab_offset,
              std::vector<Load>& loads) {
  const std::vector<CopyItem>& items = from.plan.items;  // in the order of the slab
  const auto first = std::lower_bound(
      items.begin(), items.end(), part.slab_offset,
      [](const CopyItem& item, uint64_t offset) { return item.slab_offset < offset; });
  for (auto item = first; item != items.end() && item->slab_offset < part.slab_offset + part.bytes;
       ++item) {
    loads.push_back({&from, static_cast<size_t>(item - items.begin()),
                     slab_offset + (item->slab_offset - part.slab_offset)});
  }
}

// Finds what the first replicas have of tensors, in the records of other ranks.
class FirstReplicas {
 public:
  FirstReplicas(CopyReader& copy, Rank own) : copy_(copy), own_(own) {}

  struct Source {
    const SlabItems* items = nullptr;
    const layout::CapturedPart* part = nullptr;
  };

  // The part of the same bytes of the same shard.
  absl::StatusOr<Source> Find(const TensorSpec& spec, const layout::CapturedPart& part) {
    const Bytes wanted = BytesOf(spec, part);
    for (;;) {
      if (const auto found = known_.find(wanted); found != known_.end()) return found->second;
      if (next_ == copy_.world()) break;
      const Rank rank{next_++};
      if (rank == own_) continue;
      if (absl::Status status = Learn(rank); !status.ok()) return status;
    }
    return absl::DataLossError(fmt::format(
        "{}: rank {}: tensor '{}': needed bytes {} to {} of its shard from the first of its {} "
        "replicas, found a part of just these in none of {} ranks",
        copy_.store().Describe(), own_, CleanText(spec.name, 256), part.shard_begin,
        part.shard_begin + part.bytes, spec.replica_count, copy_.world()));
  }

 private:
  // Name, dtype, offset and extent of a shard; the first byte and how many.
  using Bytes = std::tuple<std::string, Dtype, std::vector<uint64_t>, std::vector<uint64_t>,
                           uint64_t, uint64_t>;

  static Bytes BytesOf(const TensorSpec& spec, const layout::CapturedPart& part) {
    return {spec.name, spec.dtype, spec.offset, spec.extent, part.shard_begin, part.bytes};
  }

  absl::Status Learn(Rank rank) {
    const absl::StatusOr<const SlabItems*> items = copy_.KeptItems(rank);
    if (!items.ok()) return items.status();
    for (const layout::CapturedPart& part : (*items)->manifest.parts) {
      const TensorSpec& spec = (*items)->manifest.tensors[part.tensor];
      if (spec.replica_index == 0) known_.try_emplace(BytesOf(spec, part), Source{*items, &part});
    }
    return absl::OkStatus();
  }

  CopyReader& copy_;
  const Rank own_;
  uint64_t next_ = 0;  // the rank whose record is read next
  absl::flat_hash_map<Bytes, Source> known_;
};

// All that the slab is made of.
absl::StatusOr<std::vector<Load>> LoadsOf(CopyReader& copy, const SlabItems& own) {
  std::vector<Load> loads;
  FirstReplicas others(copy, own.manifest.rank);
  for (const layout::CapturedPart& part : own.manifest.parts) {
    const TensorSpec& spec = own.manifest.tensors[part.tensor];
    if (IsCopied(own.manifest, spec)) {
      AddItems(own, part, part.slab_offset, loads);
      continue;
    }
    const absl::StatusOr<FirstReplicas::Source> source = others.Find(spec, part);
    if (!source.ok()) return source.status();
    AddItems(*source->items, *source->part, part.slab_offset, loads);
  }
  return loads;
}

// Reads what a copy has into one slab.
class Loader {
 public:
  Loader(CopyReader& copy, std::span<std::byte> data, uint64_t bytes, OnProgress on_progress)
      : copy_(copy), data_(data), bytes_(bytes), on_progress_(on_progress) {}

  absl::Status Run(const Load& load) {
    const CopyItem& item = load.from->plan.items[load.item];
    const TensorSpec& spec = load.from->manifest.tensors[item.tensor];
    const uint64_t begin = item.at + ArchiveHead(ArchiveOf(spec, item.box)).size();
    uint32_t crc = Crc32c({});
    for (uint64_t done = 0; done < item.bytes;) {
      const std::span<std::byte> piece = Piece(std::min(kPieceBytes, item.bytes - done));
      if (absl::Status status = Read(load.from->file, spec, begin + done, piece); !status.ok()) {
        return status;
      }
      // Of the private copy: others may map the slab.
      crc = Crc32cExtend(crc, piece);
      std::memcpy(data_.data() + load.slab_offset + done, piece.data(), piece.size());
      done += piece.size();
      loaded_ += piece.size();
      if (!on_progress_(loaded_, bytes_)) return absl::CancelledError("the load was cancelled");
    }
    const uint32_t needed = load.from->crcs[load.item];
    if (crc == needed) return absl::OkStatus();
    return absl::DataLossError(fmt::format(
        "{}: tensor '{}': its {} bytes from byte {} on have CRC {:08x}, needed {:08x}",
        copy_.PathOf(load.from->file), CleanText(spec.name, 256), item.bytes, begin, crc, needed));
  }

 private:
  std::span<std::byte> Piece(uint64_t bytes) {
    if (buffer_.size() < bytes) buffer_.resize(bytes);
    return std::span(buffer_).first(bytes);
  }

  absl::Status Read(const std::string& file, const TensorSpec& spec, uint64_t offset,
                    std::span<std::byte> into) {
    const absl::Status status = copy_.store().Read(file, offset, into);
    if (!absl::IsNotFound(status) && !absl::IsOutOfRange(status)) return status;
    return absl::DataLossError(fmt::format(
        "{}: tensor '{}': needed {} bytes from byte {} on, found no such: {}", copy_.PathOf(file),
        CleanText(spec.name, 256), into.size(), offset, status.message()));
  }

  CopyReader& copy_;
  const std::span<std::byte> data_;
  const uint64_t bytes_;  // in all
  const OnProgress on_progress_;
  uint64_t loaded_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace

absl::Status LoadSlab(CopyReader& copy, const CopySlab& slab, std::span<std::byte> data,
                      OnProgress on_progress) {
  const absl::StatusOr<SlabItems> own = copy.ItemsOf(slab);
  if (!own.ok()) return own.status();
  const layout::SlotManifest& manifest = own->manifest;
  const uint64_t needed =
      BlockCount(manifest.data_bytes, manifest.block_bytes) * manifest.block_bytes;
  if (data.size() < needed) {
    return absl::InvalidArgumentError(
        fmt::format("rank {}: its slab of {} bytes in blocks of {} needs {} bytes, found {}",
                    manifest.rank, manifest.data_bytes, manifest.block_bytes, needed, data.size()));
  }
  const absl::StatusOr<std::vector<Load>> loads = LoadsOf(copy, *own);
  if (!loads.ok()) return loads.status();
  uint64_t bytes = 0;
  for (const layout::CapturedPart& part : manifest.parts) bytes += part.bytes;
  if (!data.empty()) std::memset(data.data(), 0, data.size());
  Loader loader(copy, data, bytes, on_progress);
  for (const Load& load : *loads) {
    if (absl::Status status = loader.Run(load); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<uint32_t> BlockCrcs(std::span<const std::byte> data, uint64_t block_bytes,
                                uint64_t blocks) {
  UNREFT_CHECK(blocks == 0 || data.size() / blocks >= block_bytes,
               "{} blocks of {} bytes in {} bytes", blocks, block_bytes, data.size());
  std::vector<uint32_t> crcs;
  crcs.reserve(blocks);
  for (uint64_t block = 0; block < blocks; ++block) {
    crcs.push_back(Crc32c(data.subspan(block * block_bytes, block_bytes)));
  }
  return crcs;
}

}  // namespace unreft::durable
