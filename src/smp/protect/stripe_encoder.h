// StripeEncoder: encodes positions of one stripe of a group, of the k data blocks that it reads
// from the members that have them.
//
// A source that is still capturing answers when the block is there. What was not had, or was not
// what its source sent, is read again until it is right; what has landed is not.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "smp/memory/tile_pool.h"
#include "smp/protect/guard_activity.h"
#include "smp/protect/guard_reads.h"
#include "smp/protect/guard_task.h"

namespace unreft::smp {

// A position of a stripe, with what is found of it.
struct EncodedPosition {
  uint64_t position = 0;
  TileSet tiles;                               // the k data chunks, then the m parities
  std::vector<std::span<std::byte>> parities;  // by number; one may lie in the guard
  std::vector<uint32_t> parity_crcs;           // by number
  std::vector<uint32_t> input_crcs;            // by source
};

// Single-threaded on the node's executor; coding and CRCs run on the work pool.
class StripeEncoder {
 public:
  using Done = absl::AnyInvocable<void(std::shared_ptr<const EncodedPosition>)>;

  // `kept`: the number of the parity that is encoded into the guard; none when all go to tiles.
  StripeEncoder(const GuardTask& task, GuardActivity& activity, uint32_t stripe,
                std::optional<uint32_t> kept)
      : task_(task), activity_(activity), stripe_(stripe), kept_(kept), reads_(task, activity) {}

  // `done` is not called once the activity is cancelled.
  void Encode(uint64_t position, Done done);

  // Lets the reads on their way end soon.
  void Cancel() { reads_.Cancel(); }

 private:
  // A position that is being encoded.
  struct Encoding {
    std::shared_ptr<EncodedPosition> encoded;  // shared with those it is handed on to
    Done done;
    std::vector<std::span<std::byte>> data;  // by source; empty: zeros that are nowhere
    std::vector<bool> landed;                // by source
    std::vector<bool> suspect;               // by source: landed before, without its CRC
    uint32_t reading = 0;
    bool failed = false;
    absl::Status status;  // of the pool's work
  };

  void ReadSources(std::shared_ptr<Encoding> encoding);
  void ReadSource(std::shared_ptr<Encoding> encoding, uint32_t source);
  void Compute(std::shared_ptr<Encoding> encoding);
  void OnComputed(std::shared_ptr<Encoding> encoding);

  const GuardTask& task_;
  GuardActivity& activity_;
  const uint32_t stripe_;
  const std::optional<uint32_t> kept_;
  GuardReads reads_;
};

}  // namespace unreft::smp
