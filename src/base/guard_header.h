// The byte layout of a guard segment: a node's share in the protection of its group's slabs of one
// version (docs/formats/guard.md).
//
//   0            GuardHeader: geometry, grant, seal, each with its CRC32C, then the state word
//   4096         record       (protobuf unreft.GuardRecord: the group, its slabs, the replicas)
//   ...          parity CRCs  one u32 per parity block: [parity][position]
//   ...          input CRCs   one u32 per data block that went into it: [parity][position][source]
//   ...          parity       m chunks, one after the other, each `positions` blocks
//
// Everything is little-endian; the regions begin at multiples of 4096. Only the daemon touches it.
// The bodies are written as those of a slot (base/slot_header.h): the state word names the last one
// that is whole, so a parity chunk is usable only when all of it is complete (docs/protocol.md,
// rule 17).
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/random.h"
#include "base/segment_store.h"

namespace unreft {

inline constexpr uint64_t kGuardMagic = 0x4452415547524e55;  // "UNRGUARD"
inline constexpr uint16_t kGuardFormat = 1;
inline constexpr uint16_t kGuardMinReader = 1;
// Of the record in a guard.
inline constexpr uint32_t kGuardRecordFormat = 1;
inline constexpr uint32_t kGuardRecordMinReader = 1;

// Of a guard's state word. Persistent.
enum class GuardState : uint8_t {
  kEmpty = 1,     // holds nothing
  kFilling = 2,   // the grant is valid
  kComplete = 3,  // the seal is valid
};

// Written once, when the segment is made.
struct GuardGeometry {
  uint64_t magic = kGuardMagic;
  uint16_t format = kGuardFormat;
  uint16_t min_reader = kGuardMinReader;
  uint32_t block_bytes = 0;  // a power of two
  uint64_t guard_id = 0;
  uint64_t record_offset = 0;
  uint64_t record_capacity = 0;
  uint64_t parity_crc_offset = 0;
  uint64_t input_crc_offset = 0;
  uint64_t parity_offset = 0;
  uint64_t positions_max = 0;  // blocks of a parity chunk
  uint32_t chunks = 0;         // parity chunks, m
  uint32_t sources_max = 0;    // k
  RandomId boot_id = {};
  RandomId incarnation = {};
  uint32_t reserved = 0;
  uint32_t crc = 0;  // CRC32C of all bytes before it
};
static_assert(sizeof(GuardGeometry) == 120);

// Written when the segment is given to a version.
struct GuardGrant {
  uint64_t generation = 0;
  uint64_t timeline = 0;
  uint64_t step = 0;
  uint64_t positions = 0;  // in use, of each chunk
  uint32_t sources = 0;    // k
  uint32_t crc = 0;        // CRC32C of all bytes before it
};
static_assert(sizeof(GuardGrant) == 40);

// Written when everything is there.
struct GuardSeal {
  uint64_t generation = 0;
  uint64_t record_bytes = 0;
  uint32_t record_crc = 0;
  uint32_t parity_crc_table_crc = 0;
  uint32_t input_crc_table_crc = 0;
  uint32_t crc = 0;  // CRC32C of all bytes before it
};
static_assert(sizeof(GuardSeal) == 32);

struct GuardHeader {
  GuardGeometry geometry;
  GuardGrant grant;
  GuardSeal seal;
  SharedWord state;  // generation << 8 | GuardState
};
static_assert(sizeof(GuardHeader) == 200);

// The geometry of a guard that can hold so much, its regions laid out and its CRC not set.
GuardGeometry MakeGuardGeometry(uint64_t guard_id, uint32_t block_bytes, uint64_t record_bytes,
                                uint32_t chunks, uint32_t sources, uint64_t positions);

uint64_t GuardSegmentBytes(const GuardGeometry& geometry);

// A guard segment whose geometry has been checked. Does not own the mapping. Thread-compatible.
class GuardView {
 public:
  // As SlotView::Check: DataLoss for a corrupt header, FailedPrecondition for another format.
  static absl::StatusOr<GuardView> Check(std::span<std::byte> bytes);

  const GuardGeometry& geometry() const { return geometry_; }
  // As SlotView::MendGeometry.
  void MendGeometry();
  GuardHeader& header() { return *header_; }

  Generation generation() const { return Generation{LoadState() >> 8}; }
  GuardState state() const { return static_cast<GuardState>(LoadState() & 0xff); }
  void set_state(Generation generation, GuardState state) {
    header_->state.store(generation.value << 8 | static_cast<uint64_t>(state),
                         std::memory_order_release);
  }

  // The grant or seal, when its CRC is right and it is of the state word's generation, and its
  // numbers lie within the geometry: DataLoss.
  absl::StatusOr<GuardGrant> CheckedGrant() const;
  absl::StatusOr<GuardSeal> CheckedSeal() const;

  std::span<std::byte> record() {
    return bytes_.subspan(geometry_.record_offset, geometry_.record_capacity);
  }
  // Of the first `positions` of each chunk, as GuardGrant::positions says.
  std::span<uint32_t> parity_crcs(uint32_t chunk, uint64_t positions);
  std::span<uint32_t> input_crcs(uint32_t chunk, uint64_t position, uint32_t sources);
  std::span<std::byte> block(uint32_t chunk, uint64_t position) {
    return bytes_.subspan(geometry_.parity_offset +
                              (chunk * geometry_.positions_max + position) * geometry_.block_bytes,
                          geometry_.block_bytes);
  }
  // The whole tables, for their CRCs.
  std::span<std::byte> parity_crc_table();
  std::span<std::byte> input_crc_table();

 private:
  explicit GuardView(std::span<std::byte> bytes)
      : bytes_(bytes),
        header_(reinterpret_cast<GuardHeader*>(bytes.data())),
        geometry_(header_->geometry) {}
  uint64_t LoadState() const { return header_->state.load(std::memory_order_acquire); }

  std::span<std::byte> bytes_;
  GuardHeader* header_;
  GuardGeometry geometry_;
};

// Writes the header into a fresh (all zero) segment, the magic last, and sets the state kEmpty.
GuardView FormatGuard(std::span<std::byte> bytes, GuardGeometry geometry);

}  // namespace unreft
