// ManifestView: a manifest that is read in place. Pure; single-threaded.
//
// For who reads the manifests of ten thousand ranks and keeps little of each: a tenth of the time
// of DecodeManifest, and of a reader that is used again and again no memory for each tensor.
#pragma once

#include <absl/status/status.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "layout/manifest.h"
#include "layout/tensor_view.h"

namespace unreft::layout {

class ManifestView {
 public:
  // Takes and refuses what DecodeManifest does, with the same result. What follows refers to
  // `bytes`, and is of them until the next Read.
  absl::Status Read(std::string_view bytes);

  const SlotManifest& head() const { return head_; }  // without tensors and parts
  std::span<const TensorView> tensors() const { return tensors_; }
  std::span<const CapturedPart> parts() const { return parts_; }
  // Whether it was left to DecodeManifest, since it was not as EncodeManifest writes it, has names
  // beyond ASCII, or shards of one tensor apart from each other.
  bool is_decoded() const { return decoded_.has_value(); }

 private:
  // What is plain is taken as DecodeManifest takes it; false of anything else, good or bad.
  bool ReadPlain(std::string_view bytes);
  bool ReadTensor(std::string_view bytes);
  bool ReadPart(std::string_view bytes);
  bool CheckHead() const;
  bool CheckTensors();
  bool CheckAlike(size_t first, size_t end) const;
  bool TakeNames();
  bool CheckParts() const;

  SlotManifest head_;
  std::vector<TensorView> tensors_;
  std::vector<CapturedPart> parts_;
  std::vector<uint64_t> numbers_;  // that the tensors refer to
  // Of the tensors of a manifest before, each once: the next one mostly has the same.
  std::vector<std::string> names_;
  std::optional<SlotManifest> decoded_;
};

}  // namespace unreft::layout
