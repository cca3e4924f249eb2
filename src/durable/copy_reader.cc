#include "durable/copy_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <span>

#include "base/crc32c.h"
#include "base/format.h"
#include "durable/copy_record.h"

namespace unreft::durable {
namespace {

std::string Hex(const std::string& id) {
  const std::span bytes(reinterpret_cast<const unsigned char*>(id.data()), id.size());
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

std::string Path(const ColdStore& store, std::string_view file) {
  return fmt::format("{}/{}", store.Describe(), file);
}

absl::Status NotComplete(const ColdStore& store, std::string_view file) {
  return absl::FailedPreconditionError(fmt::format(
      "{}: it is no complete durable copy: needed {}, found none", store.Describe(), file));
}

// That `.metadata` is there: of its bytes nothing is read.
absl::Status CheckMark(ColdStore& store) {
  std::byte first{};
  const absl::Status status = store.Read(kMetadataFile, 0, {&first, 1});
  if (absl::IsNotFound(status)) return NotComplete(store, kMetadataFile);
  if (!absl::IsOutOfRange(status)) return status;
  return absl::DataLossError(
      fmt::format("{}: needed a byte at least, found none", Path(store, kMetadataFile)));
}

// All bytes of a file without which the copy is not complete.
absl::StatusOr<std::string> NeededFile(ColdStore& store, std::string_view file) {
  absl::StatusOr<std::string> bytes = store.Get(file, kRecordBytesMax);
  if (absl::IsNotFound(bytes.status())) return NotComplete(store, file);
  return bytes;
}

}  // namespace

absl::StatusOr<CopyReader> CopyReader::Open(ColdStore& store) {
  const absl::StatusOr<std::string> order_bytes = NeededFile(store, kOrderFile);
  if (!order_bytes.ok()) return order_bytes.status();
  const absl::StatusOr<CopyOrder> order = DecodeOrder(*order_bytes, Path(store, kOrderFile));
  if (!order.ok()) return order.status();
  if (order->format() != CopyOrder::DCP) {
    return absl::FailedPreconditionError(
        fmt::format("{}: it has the weights alone, in safetensors: needed a copy of format dcp",
                    store.Describe()));
  }
  if (absl::Status status = CheckMark(store); !status.ok()) return status;
  const absl::StatusOr<std::string> bytes = NeededFile(store, kRecordFile);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<CopyRecord> record = DecodeRecord(*bytes, Path(store, kRecordFile));
  if (!record.ok()) return record.status();
  if (record->order().id() != order->id()) {
    return absl::DataLossError(fmt::format(
        "{}: it is of another copy than {}: needed copy {}, found {}", Path(store, kRecordFile),
        kOrderFile, Hex(order->id()), Hex(record->order().id())));
  }
  const uint64_t slabs = static_cast<uint64_t>(record->slab_crcs_size());
  if (slabs != record->order().world()) {
    return absl::DataLossError(fmt::format("{}: needed the CRCs of {} ranks, found {}",
                                           Path(store, kRecordFile), record->order().world(),
                                           slabs));
  }
  return CopyReader(store, *std::move(record));
}

std::string CopyReader::PathOf(std::string_view file) const { return Path(*store_, file); }

absl::StatusOr<CopySlab> CopyReader::Describe(Rank rank) const {
  if (rank.value >= world()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: needed a rank below {}, found {}", store_->Describe(), world(), rank));
  }
  const std::string path = PathOf(SlabFile(rank));
  const absl::StatusOr<std::string> bytes = store_->Get(SlabFile(rank), kRecordBytesMax);
  if (absl::IsNotFound(bytes.status())) {
    return absl::DataLossError(
        fmt::format("{}: needed the record of rank {}, found no file", path, rank));
  }
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<CopySlab> slab = DecodeSlab(*bytes, path);
  if (!slab.ok()) return slab.status();
  const uint32_t needed = record_.slab_crcs(static_cast<int>(rank.value));
  const uint32_t found = Crc32c(std::as_bytes(std::span(*bytes)));
  if (found != needed) {
    return absl::DataLossError(fmt::format("{}: {} has CRC {:08x} for it, found {:08x}", path,
                                           kRecordFile, needed, found));
  }
  if (absl::Status status = CheckedItems(*slab, rank).status(); !status.ok()) return status;
  return slab;
}

absl::StatusOr<SlabItems> CopyReader::ItemsOf(const CopySlab& slab) const {
  return CheckedItems(slab, Rank{slab.rank()});
}

absl::StatusOr<SlabItems> CopyReader::CheckedItems(const CopySlab& slab, Rank rank) const {
  const auto failed = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        fmt::format("{}: {}", PathOf(SlabFile(rank)), status.message()));
  };
  const auto lost = [&](const std::string& why) { return failed(absl::DataLossError(why)); };
  if (slab.id() != order().id() || slab.rank() != rank.value) {
    return lost(fmt::format("needed rank {} of copy {}, found rank {} of copy {}", rank,
                            Hex(order().id()), slab.rank(), Hex(slab.id())));
  }
  absl::StatusOr<layout::SlotManifest> manifest = layout::DecodeManifest(slab.manifest());
  if (!manifest.ok()) return failed(manifest.status());
  const Version version{Timeline{order().timeline()}, Step{order().step()}};
  if (manifest->rank != rank || manifest->world != world() || manifest->version != version) {
    return lost(fmt::format(
        "needed a manifest of version {} of rank {} of {}, found version {} of rank {} of {}",
        version, rank, world(), manifest->version, manifest->rank, manifest->world));
  }
  if (slab.item_bytes_max() < kItemBytesMin || slab.item_bytes_max() > kItemBytesMax) {
    return lost(fmt::format("needed items of {} to {} bytes at most, found {}", kItemBytesMin,
                            kItemBytesMax, slab.item_bytes_max()));
  }
  absl::StatusOr<CopyPlan> plan = PlanCopy(*manifest, slab.item_bytes_max());
  if (!plan.ok()) return failed(plan.status());
  if (slab.file() != ItemsFile(rank) || slab.file_bytes() != plan->file_bytes ||
      static_cast<uint64_t>(slab.item_crcs_size()) != plan->items.size()) {
    return lost(fmt::format("needed {} items in {} bytes of {}, found {} in {} bytes of '{}'",
                            plan->items.size(), plan->file_bytes, ItemsFile(rank),
                            slab.item_crcs_size(), slab.file_bytes(), slab.file()));
  }
  return SlabItems{*std::move(manifest),
                   *std::move(plan),
                   slab.file(),
                   {slab.item_crcs().begin(), slab.item_crcs().end()}};
}

absl::StatusOr<const SlabItems*> CopyReader::KeptItems(Rank rank) {
  std::unique_ptr<const SlabItems>& kept = kept_[rank];
  if (kept == nullptr) {
    const absl::StatusOr<CopySlab> slab = Describe(rank);
    if (!slab.ok()) return slab.status();
    absl::StatusOr<SlabItems> items = ItemsOf(*slab);
    if (!items.ok()) return items.status();
    kept = std::make_unique<const SlabItems>(*std::move(items));
  }
  return kept.get();
}

}  // namespace unreft::durable
