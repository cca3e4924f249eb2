// Lane: fills one parity chunk of a guard, position by position in order, a few at a time.
//
// The lane of the stripe that this node aggregates encodes it, and leaves all its parities to the
// parity server; the other lanes read theirs from their aggregators (docs/protocol.md, rule 6). A
// lane whose aggregator is lost encodes what is left itself (rule 18), and so does every lane when
// the guard is made again after a loss.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

#include "smp/protect/block_reads.h"
#include "smp/protect/guard_activity.h"
#include "smp/protect/guard_task.h"
#include "smp/protect/parity_server.h"
#include "smp/protect/stripe_encoder.h"

namespace unreft::smp {

// Single-threaded on the node's executor; CRCs run on the work pool.
class Lane {
 public:
  // Of the guard's chunk `parity`, which has that number in the stripe's parities, too. `server`:
  // hands on what is encoded here; null where this node does not aggregate the stripe.
  Lane(const GuardTask& task, GuardActivity& activity, uint32_t parity, bool encodes,
       ParityServer* server);

  // Begins as many positions as there is room for.
  void Run();
  bool is_complete() const { return finished_ == task_.coded->layout().positions(); }

  // The memory of that member is gone.
  void DoWithout(uint32_t member);

  // Lets the reads on their way end soon.
  void Cancel();

 private:
  void Start(uint64_t position);
  void Fetch(uint64_t position);
  void OnFetched(uint64_t position, const absl::StatusOr<ReadHeader>& header);
  void OnEncoded(std::shared_ptr<const EncodedPosition> encoded);
  // The position's parity is in place.
  template <typename Crcs>
  void Finish(uint64_t position, uint32_t crc, const Crcs& input_crcs);

  const GuardTask& task_;
  GuardActivity& activity_;
  const uint32_t parity_;
  const uint32_t stripe_;
  bool encodes_;
  ParityServer* const server_;
  StripeEncoder encoder_;
  BlockReads fetches_;
  uint64_t next_ = 0;  // position to begin
  uint64_t running_ = 0;
  uint64_t finished_ = 0;
};

}  // namespace unreft::smp
