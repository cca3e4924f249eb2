// The byte layout of a slot segment: one rank's slab for one version (docs/formats/slot.md).
//
//   0            SlotHeader: geometry, grant, seal, each with its CRC32C, then the state word
//   4096         manifest     (protobuf unreft.Manifest)
//   ...          CRC table    one u32 per block of data
//   ...          extras       opaque bytes of the rank: RNG, scheduler, ...
//   ...          data         the slab, cut into blocks
//
// Everything is little-endian; the regions begin at multiples of 4096. The header is the truth
// about a slot (docs/protocol.md, rule 2). Only the daemon writes it; a trainer writes extras and
// data, and only while the slot is claimed by it. The three bodies are written one after the other,
// each once per generation, so that a writer killed between two bytes leaves the state word naming
// the last body that is whole:
//
//   geometry  when the segment is made
//   grant     when a generation is granted to a trainer's life         kEmpty     -> kCapturing
//   seal      when all bytes are present and every block has its CRC   kCapturing -> kSealed
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/ids.h"
#include "base/random.h"
#include "base/segment_store.h"

namespace unreft {

inline constexpr uint64_t kSlotMagic = 0x544f4c5346524e55;  // "UNRFSLOT"
inline constexpr uint16_t kSlotFormat = 1;
inline constexpr uint16_t kSlotMinReader = 1;
inline constexpr uint64_t kSegmentPage = 4096;

// Of a slot's state word. Persistent.
enum class SlotState : uint8_t {
  kEmpty = 1,      // holds nothing; may be granted
  kCapturing = 2,  // the grant is valid; the trainer's life in it may be writing
  kSealed = 3,     // the seal is valid; nobody writes
  kAbandoned = 4,  // the grant is valid, the version is given up; the life may still be writing
};

std::string_view SlotStateName(SlotState state);

// Written once, when the segment is made.
struct SlotGeometry {
  uint64_t magic = kSlotMagic;
  uint16_t format = kSlotFormat;
  uint16_t min_reader = kSlotMinReader;
  uint32_t block_bytes = 0;  // a power of two
  uint64_t slot_id = 0;
  uint64_t manifest_offset = 0;
  uint64_t manifest_capacity = 0;
  uint64_t crc_offset = 0;
  uint64_t crc_capacity = 0;
  uint64_t extras_offset = 0;
  uint64_t extras_capacity = 0;
  uint64_t data_offset = 0;
  uint64_t data_capacity = 0;  // a multiple of block_bytes
  RandomId boot_id = {};       // of the host's boot
  RandomId incarnation = {};   // of the node's memory
  uint32_t reserved = 0;
  uint32_t crc = 0;  // CRC32C of all bytes before it
};
static_assert(sizeof(SlotGeometry) == 128);

// Written when a generation is granted.
struct SlotGrant {
  uint64_t generation = 0;
  uint64_t rank = 0;
  uint64_t world = 0;
  int64_t pid = 0;  // with start_time: the one life that may write
  uint64_t start_time = 0;
  uint64_t attempt = 0;
  uint64_t timeline = 0;
  uint32_t reserved = 0;
  uint32_t crc = 0;  // CRC32C of all bytes before it
};
static_assert(sizeof(SlotGrant) == 64);

// Written when the version is complete on this slot.
struct SlotSeal {
  uint64_t generation = 0;
  uint64_t timeline = 0;
  uint64_t step = 0;
  uint64_t layout_digest = 0;  // layout::CapturePlan::digest()
  uint64_t data_bytes = 0;     // of the slab, the last block padded with zeros
  uint64_t extras_bytes = 0;
  uint64_t manifest_bytes = 0;
  uint32_t extras_crc = 0;
  uint32_t manifest_crc = 0;
  uint32_t crc_table_crc = 0;
  uint32_t crc = 0;  // CRC32C of all bytes before it
};
static_assert(sizeof(SlotSeal) == 72);

struct SlotHeader {
  SlotGeometry geometry;
  SlotGrant grant;
  SlotSeal seal;
  SharedWord state;  // generation << 8 | SlotState
};
static_assert(sizeof(SlotHeader) == 272 && sizeof(SlotHeader) <= kSegmentPage);

// What is read of a state word.
struct SlotStateWord {
  Generation generation;
  SlotState state = SlotState::kEmpty;

  static SlotStateWord Decode(uint64_t word) {
    return {Generation{word >> 8}, static_cast<SlotState>(word & 0xff)};
  }
  uint64_t Encode() const { return generation.value << 8 | static_cast<uint64_t>(state); }
};

// The geometry of a new slot that can hold so many bytes, its regions laid out and its CRC not set.
// `block_bytes` is a power of two; the manifest region fits `manifest_bytes`.
SlotGeometry MakeSlotGeometry(SlotId id, uint32_t block_bytes, uint64_t manifest_bytes,
                              uint64_t extras_bytes, uint64_t data_bytes);

// Bytes of the whole segment.
uint64_t SlotSegmentBytes(const SlotGeometry& geometry);

// The number of blocks that `data_bytes` take.
uint64_t BlockCount(uint64_t data_bytes, uint32_t block_bytes);

// Sets `body.crc`. For SlotGeometry, SlotGrant, SlotSeal (and NodeBody).
template <typename Body>
void SetBodyCrc(Body& body);

// Whether `body.crc` is that of its bytes.
template <typename Body>
bool BodyCrcIsRight(const Body& body);

// A slot segment whose geometry has been checked; the only way to its regions. Does not own the
// mapping. Thread-compatible.
class SlotView {
 public:
  // Checks magic, format, CRC, and that every region lies within `bytes`. DataLoss for a corrupt
  // header, FailedPrecondition for another format (naming the version needed and found).
  static absl::StatusOr<SlotView> Check(std::span<std::byte> bytes);

  // Of the whole segment.
  std::span<std::byte> bytes() const { return bytes_; }

  // As it was when it was checked: memory that rots later leads no access astray.
  const SlotGeometry& geometry() const { return geometry_; }
  // Writes it again as it was, where a bit of it has turned. The daemon's.
  void MendGeometry() {
    if (!BodyCrcIsRight(header_->geometry)) header_->geometry = geometry_;
  }
  SlotHeader& header() { return *header_; }
  const SlotHeader& header() const { return *header_; }
  SlotStateWord state() const {
    return SlotStateWord::Decode(header_->state.load(std::memory_order_acquire));
  }
  void set_state(Generation generation, SlotState state) {
    header_->state.store(SlotStateWord{generation, state}.Encode(), std::memory_order_release);
  }

  // The grant or seal, when its CRC is right and it is of the state word's generation: DataLoss.
  absl::StatusOr<SlotGrant> CheckedGrant() const;
  absl::StatusOr<SlotSeal> CheckedSeal() const;

  std::span<std::byte> manifest() {
    return Region(geometry().manifest_offset, geometry().manifest_capacity);
  }
  std::span<std::byte> crc_table() {
    return Region(geometry().crc_offset, geometry().crc_capacity);
  }
  std::span<std::byte> extras() {
    return Region(geometry().extras_offset, geometry().extras_capacity);
  }
  std::span<std::byte> data() { return Region(geometry().data_offset, geometry().data_capacity); }

  // Block `index` of a slab of `data_bytes`: always a whole block.
  std::span<std::byte> block(uint64_t index) {
    return data().subspan(index * geometry().block_bytes, geometry().block_bytes);
  }

 private:
  explicit SlotView(std::span<std::byte> bytes)
      : bytes_(bytes),
        header_(reinterpret_cast<SlotHeader*>(bytes.data())),
        geometry_(header_->geometry) {}
  std::span<std::byte> Region(uint64_t offset, uint64_t length) {
    return bytes_.subspan(offset, length);
  }

  std::span<std::byte> bytes_;
  SlotHeader* header_;
  SlotGeometry geometry_;
};

// Writes header and regions' geometry into a fresh (all zero) segment and sets the state kEmpty of
// generation 0. `bytes` has at least SlotSegmentBytes(geometry).
SlotView FormatSlot(std::span<std::byte> bytes, SlotGeometry geometry);

}  // namespace unreft
