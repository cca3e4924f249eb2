// The byte layout of a trainer's control segment: the words that it shares with the daemon outside
// any slot (docs/formats/control.md). One page per life of a trainer; it outlives the daemon's
// process.
//
// Every change is followed by a frame on the session (the doorbell); the words themselves are what
// lets a training thread act without a socket call (docs/protocol.md, rule 8).
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/segment_store.h"

namespace unreft {

inline constexpr uint64_t kControlMagic = 0x4c52544346524e55;  // "UNRFCTRL"
inline constexpr uint16_t kControlFormat = 1;
inline constexpr uint16_t kControlMinReader = 1;
inline constexpr uint64_t kControlSegmentBytes = 4096;

// Who may change the grant word next is told by its state:
//   kNone     the daemon: kNone -> kGranted, when a slot is free and populated
//   kGranted  either, by compare-exchange: the client claims it, the daemon takes it back
//   kClaimed  the daemon, once the session told it of the claim: -> kNone or kGranted
enum class GrantState : uint8_t { kNone = 0, kGranted = 1, kClaimed = 2 };

// state 8 bits | slot 16 bits | generation 40 bits, from the lowest up.
struct GrantWord {
  GrantState state = GrantState::kNone;
  SlotId slot;
  Generation generation;

  static GrantWord Decode(uint64_t word) {
    return {static_cast<GrantState>(word & 0xff), SlotId{word >> 8 & 0xffff},
            Generation{word >> 24}};
  }
  uint64_t Encode() const {
    return static_cast<uint64_t>(state) | slot.value << 8 | generation.value << 24;
  }
  friend bool operator==(const GrantWord&, const GrantWord&) = default;
};
inline constexpr uint64_t kSlotIdMax = 0xffff;
inline constexpr uint64_t kGenerationMax = 0xff'ffff'ffff;

// How much of a claimed slot is copied: blocks 32 bits | the generation's low 32 bits above.
struct ProgressWord {
  uint32_t blocks = 0;
  uint32_t generation_low = 0;

  static ProgressWord Decode(uint64_t word) {
    return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
  }
  uint64_t Encode() const { return uint64_t{blocks} | uint64_t{generation_low} << 32; }
};

struct ControlPage {
  uint64_t magic;
  uint16_t format;
  uint16_t min_reader;
  uint32_t reserved;
  uint64_t rank;
  alignas(64) SharedWord grant;         // GrantWord; see GrantState for its writers
  alignas(64) SharedWord capture_from;  // daemon: snapshots of earlier steps are skipped
  alignas(64) SharedWord progress;      // client: ProgressWord
};
static_assert(sizeof(ControlPage) == 256 && sizeof(ControlPage) <= kControlSegmentBytes);

// Writes a fresh page into an all-zero segment.
ControlPage& FormatControlPage(std::span<std::byte> bytes, Rank rank);

// DataLoss for a wrong magic or rank, FailedPrecondition for another format.
absl::StatusOr<ControlPage*> CheckControlPage(std::span<std::byte> bytes, Rank rank);

}  // namespace unreft
