#include "tests/sim/slot_observer.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "base/crc32c.h"
#include "base/format.h"
#include "layout/manifest.h"
#include "tests/sim/model.h"

namespace unreft::sim {
namespace {

SlotStateWord StateOf(Segment& segment) {
  const auto& header = *reinterpret_cast<const SlotHeader*>(segment.bytes().data());
  return SlotStateWord::Decode(header.state.load(std::memory_order_acquire));
}

uint32_t BodyCrc(Segment& segment) { return Crc32c(segment.bytes().subspan(kSegmentPage)); }

absl::Status Bad(std::string what) { return absl::DataLossError(std::move(what)); }

bool Equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::Status JudgeParts(SlotView view, const layout::SlotManifest& manifest, const Author& author) {
  std::vector<std::byte> needed;
  for (const layout::CapturedPart& part : manifest.parts) {
    needed.resize(part.bytes);
    FillShard(needed, part.shard_begin, manifest.tensors[part.tensor], author);
    if (!Equal(needed, view.data().subspan(part.slab_offset, part.bytes))) {
      return Bad(fmt::format("tensor {} is not that of {}", manifest.tensors[part.tensor].name,
                             author.version));
    }
  }
  return absl::OkStatus();
}

absl::Status JudgeBlocks(SlotView view, const SlotSeal& seal) {
  const uint64_t blocks = BlockCount(seal.data_bytes, view.geometry().block_bytes);
  const auto table = view.crc_table().first(blocks * sizeof(uint32_t));
  if (Crc32c(table) != seal.crc_table_crc) return Bad("CRC table");
  for (uint64_t block = 0; block < blocks; ++block) {
    uint32_t crc = 0;
    std::memcpy(&crc, table.data() + block * sizeof(crc), sizeof(crc));
    if (Crc32c(view.block(block)) != crc) return Bad(fmt::format("CRC of block {}", block));
  }
  return absl::OkStatus();
}

struct Bodies {
  SlotGrant grant;
  SlotSeal seal;
};

absl::StatusOr<Bodies> ReadBodies(const SlotView& view) {
  absl::StatusOr<SlotGrant> grant = view.CheckedGrant();
  if (!grant.ok()) return grant.status();
  absl::StatusOr<SlotSeal> seal = view.CheckedSeal();
  if (!seal.ok()) return seal.status();
  return Bodies{*grant, *seal};
}

Version VersionOf(const SlotSeal& seal) { return {Timeline{seal.timeline}, Step{seal.step}}; }

}  // namespace

void SlotObserver::Watch(FakeHostMemory& host, std::string prefix) {
  slots_.clear();
  created_.clear();
  returned_.clear();
  just_left_.clear();
  leaving_.clear();
  host_ = &host;
  prefix_ = std::move(prefix) + "slot";
}

void SlotObserver::OnCreated(const std::string& name) {
  if (name.starts_with(prefix_)) created_.insert(name);
}

void SlotObserver::OnReturned(const std::string& name) {
  OnCreated(name);
  if (created_.contains(name)) returned_.insert(name);
}

void SlotObserver::OnRemoved(const std::string& name) {
  created_.erase(name);
  returned_.erase(name);
  const auto it = slots_.find(name);
  if (it == slots_.end()) return;
  Leave(name, it->second);
  slots_.erase(it);
}

void SlotObserver::Open() {
  FakeSegmentStore store(*host_);
  std::erase_if(created_, [&](const std::string& name) {
    const absl::StatusOr<uint64_t> reserved = host_->ReservedBytes(name);
    if (!reserved.ok() || *reserved < kSegmentPage) return false;  // its header is not there yet
    slots_[name].segment = *store.Open(name, Access::kReadOnly);
    return true;
  });
}

void SlotObserver::AfterEvent() {
  just_left_ = std::exchange(leaving_, {});
  just_left_at_ = trace_.event();
  if (!created_.empty()) Open();
  for (auto& [name, seen] : slots_) Look(name, seen);
}

void SlotObserver::Look(const std::string& name, Seen& seen) {
  const SlotStateWord now = StateOf(*seen.segment);
  if (now.Encode() == seen.word) return;
  Leave(name, seen);
  just_left_.insert(just_left_.end(), leaving_.begin(), leaving_.end());
  leaving_.clear();
  seen.word = now.Encode();
  const bool is_back = returned_.erase(name) > 0;
  if (now.state != SlotState::kSealed) return;
  if (is_back && !Judge(seen).ok()) return;  // it has rotted
  OnSealed(name, seen);
}

void SlotObserver::Leave(const std::string& name, Seen& seen) {
  if (!seen.held) return;
  if (!seen.flipped) {
    CheckUnchanged(name, seen);
    leaving_.push_back(*seen.held);
  }
  seen.held.reset();
}

void SlotObserver::OnSealed(const std::string& name, Seen& seen) {
  seen.flipped = false;
  seen.sealed_crc = BodyCrc(*seen.segment);
  absl::StatusOr<Held> held = Judge(seen);
  if (!held.ok()) {
    return trace_.Fail("{} was sealed with wrong bytes: {}", name, held.status().message());
  }
  seen.held = *held;
}

void SlotObserver::CheckUnchanged(const std::string& name, const Seen& seen) {
  if (BodyCrc(*seen.segment) != seen.sealed_crc) {
    trace_.Fail("{}: bytes changed while it was sealed", name);
  }
}

void SlotObserver::CheckAll() {
  for (auto& [name, seen] : slots_) {
    if (seen.held && !seen.flipped) CheckUnchanged(name, seen);
  }
}

absl::StatusOr<SlotObserver::Held> SlotObserver::Judge(const Seen& seen) const {
  absl::StatusOr<SlotView> view = SlotView::Check(seen.segment->bytes());
  if (!view.ok()) return view.status();
  if (view->state().state != SlotState::kSealed) return Bad("not sealed");
  absl::StatusOr<Bodies> bodies = ReadBodies(*view);
  if (!bodies.ok()) return bodies.status();
  const SlotSeal& seal = bodies->seal;
  const auto manifest_bytes = view->manifest().first(seal.manifest_bytes);
  if (Crc32c(manifest_bytes) != seal.manifest_crc) return Bad("CRC of the manifest");
  absl::StatusOr<layout::SlotManifest> manifest = layout::DecodeManifest(std::string_view(
      reinterpret_cast<const char*>(manifest_bytes.data()), manifest_bytes.size()));
  if (!manifest.ok()) return manifest.status();
  const Rank rank{bodies->grant.rank};
  const std::optional<Author> author = history_.AuthorOf(VersionOf(seal), rank);
  if (!author) return Bad(fmt::format("nobody trained {}", VersionOf(seal)));
  if (manifest->version != author->version) return Bad("version of the manifest");
  const auto extras = view->extras().first(seal.extras_bytes);
  if (!Equal(extras, ExtrasOf(rank, *author))) return Bad("extras");
  if (Crc32c(extras) != seal.extras_crc) return Bad("CRC of the extras");
  if (manifest->tensors != tensors_(rank, bodies->grant.world)) return Bad("tensors");
  if (absl::Status status = JudgeBlocks(*view, seal); !status.ok()) return status;
  if (absl::Status status = JudgeParts(*view, *manifest, *author); !status.ok()) return status;
  return Held{author->version, rank, bodies->grant.world};
}

// What left in the event before this one, or in this one.
std::span<const SlotObserver::Held> SlotObserver::JustLeft() const {
  if (just_left_at_ + 1 < trace_.event()) return {};
  return just_left_;
}

std::optional<Version> SlotObserver::NewestWhole() const {
  std::map<Version, std::set<Rank>> ranks;
  std::map<Version, uint64_t> worlds;
  const auto add = [&](const Held& held) {
    if (!history_.IsLive(held.version)) return;
    ranks[held.version].insert(held.rank);
    worlds[held.version] = held.world;
  };
  for (const auto& [name, seen] : slots_) {
    // The daemon may have mended what was flipped.
    if (seen.held && (!seen.flipped || Judge(seen).ok())) add(*seen.held);
  }
  for (const Held& held : JustLeft()) add(held);
  for (auto it = ranks.rbegin(); it != ranks.rend(); ++it) {
    if (it->second.size() == worlds[it->first]) return it->first;
  }
  return std::nullopt;
}

bool SlotObserver::Holds(Version version, Rank rank) const {
  const auto is_it = [&](const Held& held) { return held.version == version && held.rank == rank; };
  return std::ranges::any_of(JustLeft(), is_it) ||
         std::ranges::any_of(slots_, [&](const auto& entry) {
           const Seen& seen = entry.second;
           return seen.held && is_it(*seen.held) && (!seen.flipped || Judge(seen).ok());
         });
}

std::set<std::pair<Version, Rank>> SlotObserver::Slabs() const {
  std::set<std::pair<Version, Rank>> slabs;
  for (const auto& [name, seen] : slots_) {
    if (seen.held) slabs.emplace(seen.held->version, seen.held->rank);
  }
  return slabs;
}

std::optional<Version> SlotObserver::FlipBit(Random& random) {
  std::vector<std::string> sealed;
  for (auto& [name, seen] : slots_) {
    if (seen.held && !seen.flipped) sealed.push_back(name);
  }
  if (sealed.empty()) return std::nullopt;
  const std::string& name = sealed[random.Below(sealed.size())];
  Seen& seen = slots_[name];
  const SlotView view = *SlotView::Check(seen.segment->bytes());
  const SlotGeometry& g = view.geometry();
  const SlotSeal seal = *view.CheckedSeal();
  const uint64_t table_bytes = BlockCount(seal.data_bytes, g.block_bytes) * sizeof(uint32_t);
  const std::pair<uint64_t, uint64_t> regions[] = {
      {0, sizeof(SlotGeometry)},
      {sizeof(SlotGeometry), sizeof(SlotGrant)},
      {sizeof(SlotGeometry) + sizeof(SlotGrant), sizeof(SlotSeal) + sizeof(SharedWord)},
      {g.manifest_offset, seal.manifest_bytes},
      {g.crc_offset, table_bytes},
      {g.extras_offset, seal.extras_bytes},
      {g.data_offset, seal.data_bytes},
      {g.data_offset, seal.data_bytes}};
  const size_t region = random.Below(std::size(regions));
  if (regions[region].second == 0) return std::nullopt;
  const uint64_t offset = regions[region].first + random.Below(regions[region].second);
  host_->FlipBit(name, offset, static_cast<int>(random.Below(8)));
  trace_.Add("flipped a bit of {}, version {}, at {}", name, VersionOf(seal), offset);
  seen.flipped = true;
  seen.word = StateOf(*seen.segment).Encode();  // the flip itself is no event
  return VersionOf(seal);
}

uint64_t SlotObserver::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, seen] : slots_) bytes += seen.segment->bytes().size();
  return bytes;
}

}  // namespace unreft::sim
