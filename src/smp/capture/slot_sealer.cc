#include "smp/capture/slot_sealer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/format.h"
#include "base/lost_pages.h"
#include "smp/memory/slot_content.h"

namespace unreft::smp {
namespace {

// A capture from a device brings some 50 GB/s, a thread checks 8 of them.
constexpr uint64_t kTasksMax = 8;

void ComputeBlockCrcs(SlotView view, uint64_t begin, uint64_t end) {
  std::byte* table = view.crc_table().data();
  for (uint64_t block = begin; block < end; ++block) {
    const uint32_t crc = Crc32c(view.block(block));
    std::memcpy(table + block * sizeof(crc), &crc, sizeof(crc));
  }
}

layout::SlotManifest DescribeSlot(const Slot& slot, const std::string& job) {
  layout::SlotManifest manifest = ManifestOf(*slot.registration);
  manifest.job = job;
  manifest.version = slot.version;
  manifest.parent = slot.parent;
  manifest.rank = slot.owner;
  manifest.world = slot.world;
  manifest.attempt = slot.attempt;
  manifest.block_bytes = slot.view->geometry().block_bytes;
  manifest.data_bytes = slot.captured->data_bytes;
  manifest.extras_bytes = slot.captured->extras_bytes;
  manifest.replica_digests = slot.captured->replica_digests;
  return manifest;
}

// Writes the manifest region and fills in a seal, all but its own CRC.
absl::StatusOr<SlotSeal> WriteManifest(SlotView view, const layout::SlotManifest& manifest,
                                       Generation generation) {
  const std::string bytes = layout::EncodeManifest(manifest);
  if (bytes.size() > view.manifest().size()) {
    return absl::ResourceExhaustedError(
        fmt::format("slot {}: its manifest needs {} bytes, the region has {}",
                    view.geometry().slot_id, bytes.size(), view.manifest().size()));
  }
  std::memcpy(view.manifest().data(), bytes.data(), bytes.size());
  SlotSeal seal;
  seal.generation = generation.value;
  seal.timeline = manifest.version.timeline.value;
  seal.step = manifest.version.step.value;
  seal.layout_digest = manifest.layout_digest;
  seal.data_bytes = manifest.data_bytes;
  seal.extras_bytes = manifest.extras_bytes;
  seal.manifest_bytes = bytes.size();
  seal.extras_crc = Crc32c(view.extras().first(manifest.extras_bytes));
  seal.manifest_crc = Crc32c(view.manifest().first(bytes.size()));
  seal.crc_table_crc = Crc32c(CrcTableOf(view, manifest.data_bytes));
  return seal;
}

// The tensors of which the block has bytes.
std::string TensorsOf(const Registration& registration, uint64_t begin, uint64_t end) {
  constexpr size_t kNamesMax = 4;
  std::string names;
  size_t count = 0;
  for (const layout::CapturedPart& part : registration.plan.parts()) {
    if (part.slab_offset >= end || part.slab_offset + part.bytes <= begin) continue;
    if (++count > kNamesMax) continue;
    names += (count > 1 ? ", " : "") + registration.table.specs()[part.tensor].name;
  }
  if (count == 0) return "no tensor";
  if (count > kNamesMax) names += fmt::format(" and {} more", count - kNamesMax);
  return (count == 1 ? "tensor " : "tensors ") + names;
}

// What the trainer computed where its tensors are against what was computed here of the slot.
absl::Status CompareCrcs(SlotView view, const Registration& registration,
                         std::span<const uint32_t> block_crcs) {
  const std::byte* table = view.crc_table().data();
  const uint64_t block_bytes = view.geometry().block_bytes;
  for (uint64_t block = 0; block < block_crcs.size(); ++block) {
    uint32_t found = 0;
    std::memcpy(&found, table + block * sizeof(found), sizeof(found));
    if (found == block_crcs[block]) continue;
    return absl::DataLossError(fmt::format(
        "slot {}: block {} ({}) has CRC {:08x} in host memory, on the device it had {:08x} "
        "(device_checksum)",
        view.geometry().slot_id, block,
        TensorsOf(registration, block * block_bytes, (block + 1) * block_bytes), found,
        block_crcs[block]));
  }
  return absl::OkStatus();
}

}  // namespace

// What a seal is made of; passes from the executor's thread to the pool's and back.
struct SlotSealer::Work {
  layout::SlotManifest manifest;
  std::shared_ptr<const Registration> registration;
  std::vector<uint32_t> block_crcs;
  absl::StatusOr<SlotSeal> seal = SlotSeal{};
};

absl::StatusOr<SlotSeal> SlotSealer::MakeSeal(SlotView view, Generation generation,
                                              const Work& work) {
  absl::Status status = CompareCrcs(view, *work.registration, work.block_crcs);
  if (!status.ok()) return status;
  return WriteManifest(view, work.manifest, generation);
}

SlotSealer::SlotSealer(Executor& executor, WorkPool& pool, std::string job, uint32_t task_blocks,
                       FaultPoints* faults, OnDone on_done, OnProgress on_progress)
    : executor_(executor),
      pool_(pool),
      job_(std::move(job)),
      task_blocks_(task_blocks),
      faults_(faults),
      on_done_(std::move(on_done)),
      on_progress_(std::move(on_progress)) {}

void SlotSealer::Publish(Slot& slot, uint64_t blocks) {
  const uint64_t total =
      BlockCount(slot.registration->plan.data_bytes(), slot.view->geometry().block_bytes);
  slot.blocks_ready = std::max(slot.blocks_ready, std::min(blocks, total));
  Advance(slot);
}

absl::Status SlotSealer::Complete(Slot& slot, const Captured& captured) {
  const layout::CapturePlan& plan = slot.registration->plan;
  if (captured.layout_digest != plan.digest() || captured.data_bytes != plan.data_bytes()) {
    return absl::InvalidArgumentError(fmt::format(
        "slot {}: captured layout {:016x} of {} bytes, registered {:016x} of {} bytes", slot.id,
        captured.layout_digest, captured.data_bytes, plan.digest(), plan.data_bytes()));
  }
  if (captured.extras_bytes > slot.view->extras().size()) {
    return absl::InvalidArgumentError(fmt::format("slot {}: {} bytes of extras, the region has {}",
                                                  slot.id, captured.extras_bytes,
                                                  slot.view->extras().size()));
  }
  if (!captured.replica_digests.empty()) {
    const auto specs = slot.registration->table.specs();
    const auto needed = static_cast<size_t>(std::count_if(
        specs.begin(), specs.end(), [](const TensorSpec& spec) { return spec.replica_count > 1; }));
    if (captured.replica_digests.size() != needed) {
      return absl::InvalidArgumentError(
          fmt::format("slot {}: {} replica digests, needed {} or none", slot.id,
                      captured.replica_digests.size(), needed));
    }
  }
  const uint64_t blocks = BlockCount(plan.data_bytes(), slot.view->geometry().block_bytes);
  if (!captured.block_crcs.empty() && captured.block_crcs.size() != blocks) {
    return absl::InvalidArgumentError(fmt::format("slot {}: {} CRCs of blocks, needed {} or none",
                                                  slot.id, captured.block_crcs.size(), blocks));
  }
  slot.captured = captured;
  Publish(slot, UINT64_MAX);
  return absl::OkStatus();
}

void SlotSealer::Advance(Slot& slot) {
  if (slot.InUseByPool() || slot.phase != SlotPhase::kCapturing || slot.abandoned) return;
  // Each way to the pool and back takes longer than a task of few blocks: the last one seals, too.
  if (slot.captured && slot.blocks_ready - slot.blocks_done <= task_blocks_) return StartSeal(slot);
  if (slot.blocks_done < slot.blocks_ready) StartChecksums(slot);
}

void SlotSealer::StartChecksums(Slot& slot) {
  const uint64_t begin = slot.blocks_done;
  const uint64_t end = std::min(slot.blocks_ready, begin + kTasksMax * task_blocks_);
  slot.checksum_running = true;
  auto running = std::make_shared<uint64_t>((end - begin + task_blocks_ - 1) / task_blocks_);
  for (uint64_t from = begin; from < end; from += task_blocks_) {
    const uint64_t to = std::min(end, from + task_blocks_);
    pool_.Submit(
        [segment = slot.segment, view = *slot.view, from, to] { ComputeBlockCrcs(view, from, to); },
        executor_, lifetime_.Bind([this, slot = &slot, running, end] {
          if (--*running == 0) FinishChecksums(*slot, end);
        }));
  }
}

void SlotSealer::FinishChecksums(Slot& slot, uint64_t blocks_done) {
  slot.checksum_running = false;
  slot.blocks_done = blocks_done;
  if (slot.abandoned) return on_done_(slot, absl::AbortedError("abandoned"));
  if (on_progress_) on_progress_(slot);
  Advance(slot);
}

void SlotSealer::StartSeal(Slot& slot) {
  auto work = std::make_shared<Work>();
  work->manifest = DescribeSlot(slot, job_);
  work->registration = slot.registration;
  work->block_crcs = slot.captured->block_crcs;
  slot.sealing = true;
  pool_.Submit(
      [segment = slot.segment, view = *slot.view, generation = slot.generation, work,
       from = slot.blocks_done, to = slot.blocks_ready] {
        ComputeBlockCrcs(view, from, to);
        work->seal = MakeSeal(view, generation, *work);
      },
      executor_, lifetime_.Bind([this, slot = &slot, work, to = slot.blocks_ready] {
        const bool has_progress = std::exchange(slot->blocks_done, to) < to;
        if (has_progress && on_progress_ && !slot->abandoned) on_progress_(*slot);
        slot->sealing = false;
        if (slot->abandoned) return on_done_(*slot, absl::AbortedError("abandoned"));
        Finish(*slot, std::move(work->manifest), work->seal.status(),
               work->seal.value_or(SlotSeal{}));
      }));
}

void SlotSealer::Finish(Slot& slot, layout::SlotManifest manifest, absl::Status status,
                        SlotSeal seal) {
  if (status.ok()) {
    SetBodyCrc(seal);
    slot.view->header().seal = seal;
    status = CheckFault(faults_, "slot.seal");
    // The CRCs would be right for what is not there.
    status.Update(CheckNoPagesLost(slot.segment->bytes()));
  }
  if (status.ok()) {
    slot.view->set_state(slot.generation, SlotState::kSealed);
    slot.phase = SlotPhase::kSealed;
    slot.manifest = std::make_shared<const layout::SlotManifest>(std::move(manifest));
  }
  on_done_(slot, std::move(status));
}

}  // namespace unreft::smp
