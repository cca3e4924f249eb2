#include "durable/torch_archive.h"

#include <absl/status/status.h>
#include <fmt/format.h>
#include <isa-l.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "durable/pickle_writer.h"

namespace unreft::durable {
namespace {

constexpr size_t kTensorsMax = 65000;    // an archive's members are counted in 16 bits
constexpr size_t kMemberBytesMax = 256;  // of what a zip says of a member with a name of ours

// The lowest `bytes` bytes of it, little-endian.
void Append(std::string& out, uint64_t number, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(number >> (8 * i)));
}

// A zip of stored members, written from its beginning on (PKWARE's APPNOTE, without zip64).
class Zip {
 public:
  void Add(std::string_view name, std::string_view content) { Put(name, content, 0); }

  // Its data begin at a multiple of kArchiveAlignment.
  void AddAligned(std::string_view name, std::string_view content) {
    Put(name, content, PaddingOf(name));
  }

  // The same, whose `bytes` bytes come from elsewhere; their checksum is said behind them.
  void BeginStreamed(std::string_view name, uint64_t bytes) {
    Begin(name, bytes, 0, true, PaddingOf(name));
  }

  void EndStreamed(uint32_t crc) {
    Member& member = members_.back();
    member.crc = crc;
    at_ += member.bytes;
    const size_t begin = out_.size();
    Append(out_, 0x08074b50, 4);
    AppendChecks(member);
    at_ += out_.size() - begin;
  }

  void End() {
    const uint64_t begin = at_;
    const size_t written = out_.size();
    for (const Member& member : members_) {
      Append(out_, 0x02014b50, 4);
      Append(out_, kVersion, 2);  // of the writer; its system is 0, so that attributes say nothing
      AppendCommon(member, true);
      Append(out_, 0, 2);  // extra field
      Append(out_, 0, 2);  // comment
      Append(out_, 0, 2);  // disk
      Append(out_, 0, 2);  // attributes
      Append(out_, 0, 4);
      Append(out_, member.at, 4);
      out_.append(member.name);
    }
    const uint64_t directory_bytes = out_.size() - written;
    Append(out_, 0x06054b50, 4);
    Append(out_, 0, 2);  // disk
    Append(out_, 0, 2);  // disk of the directory
    Append(out_, members_.size(), 2);
    Append(out_, members_.size(), 2);
    Append(out_, directory_bytes, 4);
    Append(out_, begin, 4);
    Append(out_, 0, 2);  // comment
    at_ += out_.size() - written;
    UNREFT_CHECK(at_ <= kArchiveBytesMax, "a zip of {} bytes", at_);
  }

  // What has been written since the last call.
  std::string Take() { return std::exchange(out_, {}); }

 private:
  struct Member {
    std::string name;
    uint64_t at = 0;  // bytes from the beginning of the zip
    uint64_t bytes = 0;
    uint32_t crc = 0;
    bool is_streamed = false;
  };

  static constexpr uint64_t kVersion = 20;
  static constexpr uint64_t kLocalHeaderBytes = 30;
  static constexpr uint64_t kExtraHeaderBytes = 4;

  // Bytes of an extra field before data that shall be aligned.
  uint64_t PaddingOf(std::string_view name) const {
    const uint64_t over = (at_ + kLocalHeaderBytes + name.size()) % kArchiveAlignment;
    const uint64_t padding = (kArchiveAlignment - over) % kArchiveAlignment;
    return padding == 0 || padding >= kExtraHeaderBytes ? padding : padding + kArchiveAlignment;
  }

  void Put(std::string_view name, std::string_view content, uint64_t padding) {
    Begin(name, content.size(), ZipCrc32(std::as_bytes(std::span(content))), false, padding);
    out_.append(content);
    at_ += content.size();
  }

  void Begin(std::string_view name, uint64_t bytes, uint32_t crc, bool is_streamed,
             uint64_t padding) {
    members_.push_back({std::string(name), at_, bytes, crc, is_streamed});
    const size_t begin = out_.size();
    Append(out_, 0x04034b50, 4);
    AppendCommon(members_.back(), !is_streamed);
    Append(out_, padding, 2);
    out_.append(name);
    if (padding != 0) {
      out_.append("FB");  // the number under which torch itself pads
      Append(out_, padding - kExtraHeaderBytes, 2);
      out_.append(padding - kExtraHeaderBytes, 'Z');
    }
    at_ += out_.size() - begin;
  }

  // What the local header and the directory have in common.
  void AppendCommon(const Member& member, bool has_checks) {
    Append(out_, kVersion, 2);  // that a reader needs
    Append(out_, member.is_streamed ? 1 << 3 : 0, 2);
    Append(out_, 0, 2);     // stored, not compressed
    Append(out_, 0, 2);     // midnight
    Append(out_, 0x21, 2);  // of 1 January 1980
    if (has_checks) {
      AppendChecks(member);
    } else {
      out_.append(12, '\0');
    }
    Append(out_, member.name.size(), 2);
  }

  void AppendChecks(const Member& member) {
    Append(out_, member.crc, 4);
    Append(out_, member.bytes, 4);  // compressed
    Append(out_, member.bytes, 4);
  }

  std::string out_;
  uint64_t at_ = 0;  // bytes of the zip so far, streamed ones included
  std::vector<Member> members_;
};

// The class of torch that holds the data; empty if torch has none of its own for the dtype.
std::string_view StorageOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
      return "BoolStorage";
    case Dtype::kUint8:
      return "ByteStorage";
    case Dtype::kInt8:
      return "CharStorage";
    case Dtype::kInt16:
      return "ShortStorage";
    case Dtype::kInt32:
      return "IntStorage";
    case Dtype::kInt64:
      return "LongStorage";
    case Dtype::kFloat16:
      return "HalfStorage";
    case Dtype::kBfloat16:
      return "BFloat16Storage";
    case Dtype::kFloat32:
      return "FloatStorage";
    case Dtype::kFloat64:
      return "DoubleStorage";
    case Dtype::kComplex64:
      return "ComplexFloatStorage";
    case Dtype::kComplex128:
      return "ComplexDoubleStorage";
    case Dtype::kFloat8E4m3:
    case Dtype::kFloat8E5m2:
    case Dtype::kUint16:
    case Dtype::kUint32:
    case Dtype::kUint64:
      return {};
  }
  return {};
}

void WriteNumbers(PickleWriter& pickle, const std::vector<uint64_t>& numbers) {
  pickle.BeginTuple();
  for (const uint64_t number : numbers) pickle.Uint(number);
  pickle.EndTuple();
}

// The tensor whose data are the member data/`place`.
void WriteTensor(PickleWriter& pickle, const ArchiveTensor& tensor, size_t place) {
  const std::string_view storage = StorageOf(tensor.dtype);
  const uint64_t bytes = ArchiveDataBytes(tensor);
  pickle.Global("torch._utils", storage.empty() ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  pickle.BeginTuple();
  pickle.BeginTuple();
  pickle.SharedString("storage");
  if (storage.empty()) {
    pickle.Global("torch.storage", "UntypedStorage");
  } else {
    pickle.Global("torch", storage);
  }
  pickle.String(std::to_string(place));
  pickle.SharedString("cpu");
  pickle.Uint(storage.empty() ? bytes : bytes / DtypeBytes(tensor.dtype));
  pickle.EndTuple();
  pickle.PersistentId();
  pickle.Int(0);  // where in the storage it begins
  WriteNumbers(pickle, tensor.sizes);
  WriteNumbers(pickle, tensor.strides);
  pickle.Bool(false);                           // requires_grad
  pickle.Global("collections", "OrderedDict");  // backward hooks
  pickle.BeginTuple();
  pickle.EndTuple();
  pickle.Reduce();
  if (storage.empty()) pickle.Global("torch", DtypeName(tensor.dtype));
  pickle.EndTuple();
  pickle.Reduce();
}

std::string DataName(size_t place) { return fmt::format("archive/data/{}", place); }

void AddFirstMembers(Zip& zip, std::string_view pickle) {
  zip.Add("archive/data.pkl", pickle);
  zip.Add("archive/byteorder", "little");
  zip.Add("archive/version", "3\n");
}

// The zip up to the data.
Zip BeginZip(const ArchiveTensor& tensor) {
  const uint64_t bytes = ArchiveDataBytes(tensor);
  UNREFT_CHECK(DtypeBytes(tensor.dtype) != 0, "an archive of {}", DtypeName(tensor.dtype));
  UNREFT_CHECK(tensor.sizes.size() == tensor.strides.size(), "{} sizes and {} strides",
               tensor.sizes.size(), tensor.strides.size());
  UNREFT_CHECK(bytes <= kArchiveDataBytesMax, "an archive of {} bytes of data, at most {}", bytes,
               kArchiveDataBytesMax);
  PickleWriter pickle;
  WriteTensor(pickle, tensor, 0);
  Zip zip;
  AddFirstMembers(zip, std::move(pickle).Finish());
  zip.BeginStreamed(DataName(0), bytes);
  return zip;
}

absl::Status Refused(std::string_view what, std::string_view why) {
  return absl::InvalidArgumentError(fmt::format(
      "{} cannot be written for torch.load(weights_only=True): {}", CleanText(what, 64), why));
}

absl::Status TooMany(std::string_view what, std::string_view unit, uint64_t most, uint64_t found) {
  return Refused(what, fmt::format("needs at most {} {}, found {}", most, unit, found));
}

std::vector<uint64_t> RowMajor(const std::vector<uint64_t>& sizes) {
  std::vector<uint64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<uint64_t>(sizes[d], 1);
  }
  return strides;
}

// The pickle of a value, and the tensors in it in the order of their members.
class ValueWriter {
 public:
  absl::Status Write(const PlainValue& value) {
    return std::visit([this](const auto& held) { return Put(held); }, value.value);
  }

  std::string FinishPickle() { return std::move(pickle_).Finish(); }
  const std::vector<const PlainTensor*>& tensors() const { return tensors_; }

 private:
  absl::Status Put(const PlainNone&) {
    pickle_.None();
    return absl::OkStatus();
  }

  absl::Status Put(bool value) {
    pickle_.Bool(value);
    return absl::OkStatus();
  }

  absl::Status Put(int64_t value) {
    pickle_.Int(value);
    return absl::OkStatus();
  }

  absl::Status Put(const PlainBigInt& value) {
    if (value.bytes.size() > PickleWriter::kBigIntBytesMax) {
      return TooMany("an int", "bytes", PickleWriter::kBigIntBytesMax, value.bytes.size());
    }
    pickle_.BigInt(value.bytes);
    return absl::OkStatus();
  }

  absl::Status Put(double value) {
    pickle_.Float(value);
    return absl::OkStatus();
  }

  absl::Status Put(const std::string& text) {
    if (text.size() > PickleWriter::kStringBytesMax) {
      return TooMany("a str", "bytes", PickleWriter::kStringBytesMax, text.size());
    }
    pickle_.String(text);
    return absl::OkStatus();
  }

  absl::Status Put(const PlainBytes& value) {
    if (value.bytes.size() > PickleWriter::kStringBytesMax / 2) {
      return TooMany(value.is_mutable ? "a bytearray" : "a bytes", "bytes",
                     PickleWriter::kStringBytesMax / 2, value.bytes.size());
    }
    pickle_.Bytes(value.bytes, value.is_mutable);
    return absl::OkStatus();
  }

  absl::Status Put(const PlainSequence& sequence) {
    switch (sequence.kind) {
      case PlainSequence::Kind::kList:
        return PutList(sequence.items);
      case PlainSequence::Kind::kTuple: {
        pickle_.BeginTuple();
        absl::Status status = PutAll(sequence.items);
        pickle_.EndTuple();
        return status;
      }
      case PlainSequence::Kind::kSet: {
        pickle_.Global("__builtin__", "set");
        pickle_.BeginTuple();
        absl::Status status = PutList(sequence.items);
        pickle_.EndTuple();
        pickle_.Reduce();
        return status;
      }
      case PlainSequence::Kind::kFrozenSet:
        return Refused("a frozenset", "it is not read again; a set is");
    }
    return Refused("a sequence", "it is of no known kind");
  }

  absl::Status Put(const PlainDict& dict) {
    pickle_.BeginDict();
    absl::Status status = PutPairs(dict);
    pickle_.EndDict();
    return status;
  }

  absl::Status Put(const PlainTensor& value) {
    const ArchiveTensor tensor{value.dtype, value.sizes, RowMajor(value.sizes)};
    const uint64_t bytes = ArchiveDataBytes(tensor);
    if (DtypeBytes(value.dtype) == 0 || bytes != value.bytes.size()) {
      return Refused(fmt::format("a tensor of {}", DtypeName(value.dtype)),
                     fmt::format("its sizes need {} bytes, found {}", bytes, value.bytes.size()));
    }
    WriteTensor(pickle_, tensor, tensors_.size());
    tensors_.push_back(&value);
    return absl::OkStatus();
  }

  absl::Status Put(const PlainOther& other) {
    if (!other.items.empty()) return RefusedKind(other);
    if (other.kind == "OrderedDict") {
      if (!other.arguments.empty()) return RefusedKind(other);
      pickle_.Global("collections", "OrderedDict");
      pickle_.BeginTuple();
      pickle_.EndTuple();
      pickle_.Reduce();
      pickle_.BeginPairs();
      absl::Status status = PutPairs(other.pairs);
      pickle_.EndPairs();
      return status;
    }
    if (!other.pairs.items.empty()) return RefusedKind(other);
    if (other.kind == "dtype") return PutDtype(other);
    if (other.kind == "Counter" && Has<PlainDict>(other, 1)) return PutCall("collections", other);
    if (other.kind == "complex" && Has<double>(other, 2)) return PutCall("__builtin__", other);
    if (other.kind == "Size" && Has<PlainSequence>(other, 1)) return PutCall("torch", other);
    if (other.kind == "device" && Has<std::string>(other, 1)) return PutCall("torch", other);
    return RefusedKind(other);
  }

  // That a global of that name is a dtype of the reader's torch is not known here.
  absl::Status PutDtype(const PlainOther& other) {
    if (!Has<std::string>(other, 1)) return RefusedKind(other);
    const auto& name = *other.arguments.front().As<std::string>();
    const bool is_name = !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
      return std::islower(c) || std::isdigit(c) || c == '_';
    });
    if (!is_name) return RefusedKind(other);
    pickle_.Global("torch", name);
    return absl::OkStatus();
  }

  // What the module has under the name of the kind, called with the arguments.
  absl::Status PutCall(std::string_view module, const PlainOther& other) {
    pickle_.Global(module, other.kind);
    pickle_.BeginTuple();
    absl::Status status = PutAll(other.arguments);
    pickle_.EndTuple();
    pickle_.Reduce();
    return status;
  }

  absl::Status PutList(const std::vector<PlainValue>& items) {
    pickle_.BeginList();
    absl::Status status = PutAll(items);
    pickle_.EndList();
    return status;
  }

  absl::Status PutAll(const std::vector<PlainValue>& items) {
    for (const PlainValue& item : items) {
      if (absl::Status status = Write(item); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status PutPairs(const PlainDict& dict) {
    for (const auto& [key, value] : dict.items) {
      if (absl::Status status = Write(key); !status.ok()) return status;
      if (absl::Status status = Write(value); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  template <typename T>
  static bool Has(const PlainOther& other, size_t count) {
    return other.arguments.size() == count &&
           std::ranges::all_of(other.arguments, [](const PlainValue& it) { return it.As<T>(); });
  }

  static absl::Status RefusedKind(const PlainOther& other) {
    return Refused(fmt::format("a value of kind '{}'", other.kind), "such are not read again");
  }

  PickleWriter pickle_;
  std::vector<const PlainTensor*> tensors_;
};

}  // namespace

uint64_t ArchiveDataBytes(const ArchiveTensor& tensor) {
  if (std::ranges::find(tensor.sizes, 0) != tensor.sizes.end()) return 0;
  uint64_t elements = 1;
  bool overflows = false;
  const size_t dims = std::min(tensor.sizes.size(), tensor.strides.size());
  for (size_t d = 0; d < dims; ++d) {
    uint64_t more = 0;
    overflows |= __builtin_mul_overflow(tensor.sizes[d] - 1, tensor.strides[d], &more);
    overflows |= __builtin_add_overflow(elements, more, &elements);
  }
  uint64_t bytes = 0;
  overflows |= __builtin_mul_overflow(elements, DtypeBytes(tensor.dtype), &bytes);
  return overflows ? UINT64_MAX : bytes;
}

std::string ArchiveHead(const ArchiveTensor& tensor) { return BeginZip(tensor).Take(); }

std::string ArchiveTail(const ArchiveTensor& tensor, uint32_t data_crc32) {
  Zip zip = BeginZip(tensor);
  zip.Take();
  zip.EndStreamed(data_crc32);
  zip.End();
  return zip.Take();
}

uint64_t ArchiveBytes(const ArchiveTensor& tensor) {
  return ArchiveHead(tensor).size() + ArchiveDataBytes(tensor) + ArchiveTail(tensor, 0).size();
}

uint32_t ZipCrc32(std::span<const std::byte> bytes, uint32_t crc) {
  return crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

absl::StatusOr<std::string> ArchiveOfValue(const PlainValue& value) {
  ValueWriter writer;
  if (absl::Status status = writer.Write(value); !status.ok()) return status;
  const std::string pickle = writer.FinishPickle();
  const auto& tensors = writer.tensors();
  if (tensors.size() > kTensorsMax) {
    return TooMany("a value", "tensors in it", kTensorsMax, tensors.size());
  }
  uint64_t bytes = pickle.size() + (3 + tensors.size()) * kMemberBytesMax;
  for (const PlainTensor* tensor : tensors) bytes += tensor->bytes.size();
  if (bytes > kArchiveBytesMax) {
    return TooMany("a value", "bytes of its archive", kArchiveBytesMax, bytes);
  }
  Zip zip;
  AddFirstMembers(zip, pickle);
  for (size_t i = 0; i < tensors.size(); ++i) zip.AddAligned(DataName(i), tensors[i]->bytes);
  zip.End();
  return zip.Take();
}

}  // namespace unreft::durable
