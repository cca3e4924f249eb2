#include "durable/dcp_metadata.h"

#include <string_view>
#include <utility>

#include "base/check.h"
#include "durable/pickle_writer.h"

namespace unreft::durable {
namespace {

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";

void WriteEmptyTuple(PickleWriter& pickle) {
  pickle.BeginTuple();
  pickle.EndTuple();
}

// An object of the class, whose attributes are to be set by Build.
void WriteObject(PickleWriter& pickle, std::string_view module, std::string_view name) {
  pickle.Global(module, name);
  WriteEmptyTuple(pickle);
  pickle.NewObject();
}

void WriteSize(PickleWriter& pickle, const std::vector<uint64_t>& numbers) {
  pickle.Global("torch", "Size");
  pickle.BeginTuple();
  pickle.BeginTuple();
  for (const uint64_t number : numbers) pickle.Uint(number);
  pickle.EndTuple();
  pickle.EndTuple();
  pickle.Reduce();
}

// With the five parts that every release of torch reads; a sixth, the strides, is optional.
void WriteProperties(PickleWriter& pickle, Dtype dtype) {
  WriteObject(pickle, kMetadataModule, "TensorProperties");
  pickle.BeginTuple();
  pickle.Global("torch", DtypeName(dtype));
  pickle.Global("torch.serialization", "_get_layout");
  pickle.BeginTuple();
  pickle.SharedString("torch.strided");
  pickle.EndTuple();
  pickle.Reduce();
  pickle.Bool(false);  // requires_grad
  pickle.Global(kMetadataModule, "_MEM_FORMAT_ENCODING");
  pickle.BeginTuple();
  pickle.Int(0);  // contiguous
  pickle.EndTuple();
  pickle.Reduce();
  pickle.Bool(false);  // pin_memory
  pickle.EndTuple();
  pickle.Build();
}

void WriteChunk(PickleWriter& pickle, const DcpEntry& entry, const DcpChunk& chunk) {
  const size_t dims = entry.global_shape.size();
  UNREFT_CHECK(chunk.offset.size() == dims && chunk.extent.size() == dims,
               "'{}': a chunk needs {} dimensions, found {} and {}", entry.key, dims,
               chunk.offset.size(), chunk.extent.size());
  WriteObject(pickle, kMetadataModule, "ChunkStorageMetadata");
  pickle.BeginDict();
  pickle.SharedString("offsets");
  WriteSize(pickle, chunk.offset);
  pickle.SharedString("sizes");
  WriteSize(pickle, chunk.extent);
  pickle.EndDict();
  pickle.Build();
}

// What there is of the entry, without where it is.
void WriteStored(PickleWriter& pickle, const DcpEntry& entry) {
  if (!entry.is_tensor) {
    UNREFT_CHECK(entry.chunks.size() == 1 && entry.chunks[0].offset.empty() &&
                     entry.chunks[0].extent.empty() && entry.global_shape.empty(),
                 "'{}': a value needs one chunk without dimensions, found {} chunks", entry.key,
                 entry.chunks.size());
    WriteObject(pickle, kMetadataModule, "BytesStorageMetadata");
    return;
  }
  WriteObject(pickle, kMetadataModule, "TensorStorageMetadata");
  pickle.BeginDict();
  pickle.SharedString("properties");
  WriteProperties(pickle, entry.dtype);
  pickle.SharedString("size");
  WriteSize(pickle, entry.global_shape);
  pickle.SharedString("chunks");
  pickle.BeginList();
  for (const DcpChunk& chunk : entry.chunks) WriteChunk(pickle, entry, chunk);
  pickle.EndList();
  pickle.EndDict();
  pickle.Build();
}

void WritePath(PickleWriter& pickle, const std::vector<PathElement>& path) {
  pickle.BeginTuple();
  for (const PathElement& element : path) {
    if (const auto* name = std::get_if<std::string>(&element)) {
      pickle.SharedString(*name);
    } else {
      pickle.Int(std::get<int64_t>(element));
    }
  }
  pickle.EndTuple();
}

// By what DCP looks a chunk up: `place` is the chunk's among those of its tensor.
void WriteIndex(PickleWriter& pickle, const DcpEntry& entry, size_t place) {
  WriteObject(pickle, kMetadataModule, "MetadataIndex");
  pickle.BeginDict();
  pickle.SharedString("fqn");
  pickle.SharedString(entry.key);
  pickle.SharedString("index");
  if (entry.is_tensor) {
    pickle.Uint(place);
    pickle.SharedString("offset");
    WriteSize(pickle, entry.chunks[place].offset);
  } else {
    pickle.None();
  }
  pickle.EndDict();
  pickle.Build();
}

void WritePlace(PickleWriter& pickle, const DcpChunk& chunk) {
  WriteObject(pickle, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
  pickle.BeginDict();
  pickle.SharedString("relative_path");
  pickle.SharedString(chunk.file);
  pickle.SharedString("offset");
  pickle.Uint(chunk.at);
  pickle.SharedString("length");
  pickle.Uint(chunk.bytes);
  pickle.EndDict();
  pickle.Build();
}

}  // namespace

std::string EncodeDcpMetadata(std::span<const DcpEntry> entries) {
  PickleWriter pickle;
  WriteObject(pickle, kMetadataModule, "Metadata");
  pickle.BeginDict();
  pickle.SharedString("state_dict_metadata");
  pickle.BeginDict();
  for (const DcpEntry& entry : entries) {
    pickle.SharedString(entry.key);
    WriteStored(pickle, entry);
  }
  pickle.EndDict();
  pickle.SharedString("planner_data");
  pickle.BeginDict();
  for (const DcpEntry& entry : entries) {
    pickle.SharedString(entry.key);
    WritePath(pickle, entry.path);
  }
  pickle.EndDict();
  pickle.SharedString("storage_data");
  pickle.BeginDict();
  for (const DcpEntry& entry : entries) {
    for (size_t place = 0; place < entry.chunks.size(); ++place) {
      WriteIndex(pickle, entry, place);
      WritePlace(pickle, entry.chunks[place]);
    }
  }
  pickle.EndDict();
  pickle.SharedString("storage_meta");
  pickle.None();
  pickle.SharedString("version");
  pickle.String("1.0.0");
  pickle.EndDict();
  pickle.Build();
  return std::move(pickle).Finish();
}

}  // namespace unreft::durable
