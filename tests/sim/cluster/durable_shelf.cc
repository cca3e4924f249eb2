#include "tests/sim/cluster/durable_shelf.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/format.h"
#include "durable/copy_finish.h"
#include "durable/copy_shelf.h"
#include "durable/part_writer.h"
#include "durable/sealed_slab.h"
#include "smp/job/copy_choice.h"
#include "tests/fakes/fake_segment_store.h"

namespace unreft::sim {
namespace {

// The rank's slab, from whichever machine has it.
std::unique_ptr<durable::SealedSlab> FindSlab(const std::vector<Machine*>& machines, Rank rank,
                                              Version version) {
  for (Machine* machine : machines) {
    if (!machine->observer.Holds(version, rank)) continue;
    FakeSegmentStore segments(*machine->memory);
    const auto names = durable::FindSealed(segments, kJob, machine->number.value, version);
    if (!names.ok() || !names->contains(rank)) continue;
    auto slab = durable::SealedSlab::Open(segments, names->at(rank), rank, version);
    if (slab.ok()) return *std::move(slab);
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<durable::ColdStore> DurableShelf::CopyAt(const std::string& directory) {
  return std::make_unique<SubtreeColdStore>(store_, directory.substr(sizeof(kDirectory)));
}

bool DurableShelf::Write(Version version, uint64_t world, const TimelineRecord& timelines,
                         const std::vector<Machine*>& machines) {
  if (copies_.contains(version)) return false;
  std::vector<std::unique_ptr<durable::SealedSlab>> slabs;
  for (uint64_t rank = 0; rank < world; ++rank) {
    slabs.push_back(FindSlab(machines, Rank{rank}, version));
    if (slabs.back() == nullptr) return false;
  }
  const std::string name = fmt::format("copy-{}", ++written_);
  SubtreeColdStore copy(store_, name);
  CopyOrder order;
  order.set_job(kJob);
  order.set_id(name);
  order.set_timeline(version.timeline.value);
  order.set_step(version.step.value);
  order.set_world(world);
  order.set_written_ms(written_);
  smp::NameRun(timelines, order);
  UNREFT_CHECK(copy.Put(durable::kOrderFile, durable::EncodeOrder(order)).ok());
  durable::PartOrder part;
  part.version = version;
  part.id = name;
  for (const auto& slab : slabs) {
    const absl::Status status =
        durable::WriteSlab(*slab, copy, part, [](uint64_t, uint64_t) { return true; });
    if (absl::IsDataLoss(status)) return false;  // it has rotted: what is written is no copy
    UNREFT_CHECK(status.ok(), "{}", status.ToString());
  }
  const auto finished = durable::FinishCopy(copy, order, {});
  UNREFT_CHECK(finished.ok(), "{}", finished.status().ToString());
  copies_[version] = name;
  versions_.insert(version);
  runs_.emplace_back(name, order.run());
  return true;
}

bool DurableShelf::LeaveOneRun() {
  if (runs_.empty()) return false;
  const auto is_of_another = [run = runs_.back().second](const auto& copy) {
    return copy.second != run;
  };
  for (const auto& [name, run] : runs_) {
    if (run == runs_.back().second) continue;
    UNREFT_CHECK(durable::RemoveCopy(store_, name).ok());
    std::erase_if(copies_, [&](const auto& copy) { return copy.second == name; });
  }
  return std::erase_if(runs_, is_of_another) > 0;
}

bool DurableShelf::Damage(Random& random) {
  if (copies_.empty()) return false;
  const auto newest = std::prev(copies_.end());
  const auto files = store_.List(newest->second);
  UNREFT_CHECK(files.ok());
  std::vector<durable::ColdEntry> items;
  for (const durable::ColdEntry& file : *files) {
    if (file.name.find("/.unreft/rank_") != std::string::npos) items.push_back(file);
  }
  const durable::ColdEntry& file = items[random.Below(items.size())];
  store_.FlipByte(file.name, random.Below(file.bytes));
  copies_.erase(newest);
  return true;
}

}  // namespace unreft::sim
