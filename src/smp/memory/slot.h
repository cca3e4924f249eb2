// Slot: what the daemon knows of one slot segment. The segment's header is the truth; this is the
// daemon's place in its life:
//
//   kPopulating -> kFree -> kGranted -> kCapturing -> kSealed -> kFree ...
//                             │             │
//                             └── revoked   └── kDraining -> kFree   (abandoned)
//   anything that does not verify -> kQuarantined
//
// Owned by the SlotStore; used only in turns of the node's executor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/process_watcher.h"
#include "base/segment_store.h"
#include "base/session_frames.h"
#include "base/slot_header.h"
#include "layout/manifest.h"
#include "smp/core/registration.h"
#include "smp/memory/slot_reading.h"

namespace unreft::smp {

enum class SlotPhase {
  kPopulating,   // its pages are being reserved
  kFree,         // may be granted
  kGranted,      // offered to its rank's trainer
  kCapturing,    // claimed; the trainer copies, then the daemon seals
  kRebuilding,   // lost with another life of this node's memory; decoded from the group
  kSealed,       // holds a version
  kDraining,     // abandoned, but its writer may still write
  kQuarantined,  // does not verify; kept, counted, not used
};

std::string_view SlotPhaseName(SlotPhase phase);

struct Slot {
  SlotId id;
  // Shared with the work pool, whose tasks may outlast the slot's place in the store.
  std::shared_ptr<Segment> segment;
  std::optional<SlotView> view;  // none when the header did not verify

  Rank owner;
  SlotPhase phase = SlotPhase::kPopulating;
  Generation generation;
  // Why it is quarantined, and whether only its content was at fault: such a slot is used again
  // once a newer version is committed, or nobody can have a use for its own and its rank has no
  // other. Any other one of this memory goes when slots are made for a rank.
  std::string problem;
  bool reusable = false;
  // Its content is at fault, and nothing else.
  bool HasRotted() const { return phase == SlotPhase::kQuarantined && reusable; }

  // The life of its rank that was told of it, and maps it.
  ProcessLife told_to;

  // While it is free: the version whose slab of the rank is to be decoded into it.
  Version made_for;

  // Of the last grant, or as it was made for. 0: of no world that is known.
  uint64_t world = 0;
  // From the grant on.
  ProcessLife writer;
  WatchId writer_watch = WatchId::kNone;
  Attempt attempt;
  Version version;
  bool is_step_known = false;  // the claim says it; until then the version's step is 0
  Version parent;   // what the version's timeline stands on
  std::shared_ptr<const Registration> registration;

  // While capturing: how far the bytes are published, and their CRCs computed.
  uint64_t blocks_ready = 0;
  uint64_t blocks_done = 0;
  bool checksum_running = false;
  bool sealing = false;
  std::optional<Captured> captured;
  bool abandoned = false;    // to be freed once nobody writes or reads it
  bool writer_done = false;  // the abandoned slot's writer writes no more

  // Sealed.
  std::shared_ptr<const layout::SlotManifest> manifest;

  uint32_t reads = 0;  // by other nodes, on their way
  // By the pool, that verifies; each shared with its task.
  std::vector<std::shared_ptr<SlotReading>> readings;

  uint64_t bytes() const {
    return view ? SlotSegmentBytes(view->geometry()) : segment->bytes().size();
  }
  bool InUseByPool() const { return checksum_running || sealing; }
  // Not to be given to another version yet (docs/protocol.md, rule 6).
  bool InUse() const { return InUseByPool() || reads > 0 || !readings.empty(); }

  // All of the slab that is rebuilt here is there: the regions are filled, and `seal` says with
  // what. Its generation, version and checksum are set here.
  void SealRebuilt(SlotSeal seal);
};

// Whether it was made, or used last, for a rank of another world than `world`: the same rank number
// has another part of the state in each. 0: it is not said which world is asked about.
inline bool IsOfAnotherWorld(const Slot& slot, uint64_t world) {
  return world != 0 && slot.world != 0 && slot.world != world;
}

}  // namespace unreft::smp
