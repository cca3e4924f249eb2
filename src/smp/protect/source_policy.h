// SourcePolicy: which chunks of a position of a stripe are gathered, and what becomes of sources
// that fail.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

#include "base/executor.h"
#include "smp/protect/coded_version.h"

namespace unreft::smp {

// Of one gathering (stripe_gatherer.h); asked in turns of the node's executor.
class SourcePolicy {
 public:
  virtual ~SourcePolicy() = default;

  // k chunks, none twice. Those of `landed` are there, and cost nothing any more. It fails when
  // there are too few.
  virtual absl::StatusOr<std::vector<uint32_t>> Choose(
      const CodedVersion& coded, uint32_t stripe, uint64_t position,
      const std::vector<uint32_t>& landed) const = 0;

  // The chunk was not had from its holder, or was not what it said.
  virtual void OnFailure(const CodedVersion& coded, uint32_t stripe, uint32_t chunk) = 0;

  // Whether a holder that is asked again is told that its block was not what it said.
  virtual bool TellsSuspects() const = 0;

  // No other try begins from then on.
  virtual Time deadline() const = 0;
};

}  // namespace unreft::smp
