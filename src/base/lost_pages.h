// Pages of shared memory that are gone: whoever may write a segment's file may truncate it, and
// touching what lay beyond the end is SIGBUS, which would end the process with all its segments.
//
// A daemon survives it: it goes on with pages of zeros, which nobody else sees, in the place of
// those that are gone. What it reads there does not verify; what is sealed asks CheckNoPagesLost.
// It is of the process, as the signal is. Only the mappings of processes that call SurviveLostPages
// are known.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace unreft {

// For main(), before any segment is mapped: from now on the loss of pages of a KnownMapping is
// survived. Any other SIGBUS ends the process as before.
absl::Status SurviveLostPages();

// Readable once pages were lost since TakeLostPages was called last. Of the process; not to be
// closed. -1 without SurviveLostPages.
int LostPagesDescriptor();

// Of each mapping that has lost pages: DataLoss, naming the segment, the bytes needed and found.
// Each is told once. Thread-safe.
struct LostPages {
  std::string segment;
  absl::Status status;
};
std::vector<LostPages> TakeLostPages();

// DataLoss, as above, if the known mapping that begins with these bytes has lost any page.
// Thread-safe.
absl::Status CheckNoPagesLost(std::span<const std::byte> mapping);

// That a mapping of a segment's file from `offset` is there, from construction until destruction or
// Forget. Where there is no room for more of them, the mapping is not known. Thread-safe.
class KnownMapping {
 public:
  KnownMapping() = default;
  // `fd` stays open meanwhile.
  KnownMapping(const std::string& segment, std::span<const std::byte> bytes, int fd, size_t offset);
  ~KnownMapping() { Forget(); }
  KnownMapping(const KnownMapping&) = delete;
  KnownMapping& operator=(const KnownMapping&) = delete;

  // Before it is unmapped.
  void Forget();

 private:
  int entry_ = -1;
};

}  // namespace unreft
