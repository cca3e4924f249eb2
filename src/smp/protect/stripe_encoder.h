// StripeEncoder: encodes positions of one stripe of a group, of the k data blocks that it gathers
// from the members that have them (stripe_gatherer.h, all_data.h).
#pragma once

#include <absl/functional/any_invocable.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "smp/memory/tile_pool.h"
#include "smp/protect/guard_activity.h"
#include "smp/protect/guard_task.h"
#include "smp/protect/stripe_gatherer.h"

namespace unreft::smp {

// A position of a stripe, with what is found of it.
struct EncodedPosition {
  uint64_t position = 0;
  TileSet tiles;                               // the k data chunks, then the m parities
  std::vector<std::span<std::byte>> parities;  // by number; one may lie in the guard
  std::vector<uint32_t> parity_crcs;           // by number
  std::vector<uint32_t> input_crcs;            // by source
};

// Single-threaded on the node's executor; coding and CRCs run on the work pool. Each position
// counts as activity until it is encoded.
class StripeEncoder {
 public:
  using Done = absl::AnyInvocable<void(std::shared_ptr<const EncodedPosition>)>;

  // `kept`: the number of the parity that is encoded into the guard; none when all go to tiles.
  StripeEncoder(const GuardTask& task, GuardActivity& activity, uint32_t stripe,
                std::optional<uint32_t> kept);

  // `done` is not called once the activity is cancelled.
  void Encode(uint64_t position, Done done);

  // Lets what is under way end soon; nothing is encoded from now on.
  void Cancel() { gatherer_.Cancel(); }

  // No position has tiles: none, or those that are to be encoded wait for some.
  bool is_idle() const { return gatherer_.under_way() == 0; }

 private:
  const GuardTask& task_;
  GuardActivity& activity_;
  const uint32_t stripe_;
  const std::optional<uint32_t> kept_;
  StripeGatherer gatherer_;
};

}  // namespace unreft::smp
