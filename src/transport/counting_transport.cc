#include "transport/counting_transport.h"

#include <utility>

namespace unreft {
namespace {

void CountEnd(TransferCounts& counts, const absl::StatusOr<std::string>& reply, uint64_t bulk) {
  if (reply.ok()) {
    ++counts.done;
    counts.reply_bytes += reply->size();
    counts.bulk_bytes += bulk;
  } else {
    ++counts.failures[reply.status().code()];
    counts.bulk_bytes_lost += bulk;
  }
}

void CountBegin(TransferCounts& counts, const std::string& request) {
  ++counts.begun;
  counts.request_bytes += request.size();
}

}  // namespace

uint64_t TransferCounts::failed() const {
  uint64_t sum = 0;
  for (const auto& [code, count] : failures) sum += count;
  return sum;
}

CountingTransport::CountingTransport(std::unique_ptr<Transport> inner)
    : counts_(std::make_shared<TransportCounts>()), inner_(std::move(inner)) {}

CountingTransport::~CountingTransport() = default;

const TransportCounts& CountingTransport::counts() const { return *counts_; }

void CountingTransport::Call(const std::string& address, const std::string& method,
                             std::string request, Duration timeout, CallDone done) {
  CountBegin(counts_->calls[method], request);
  inner_->Call(address, method, std::move(request), timeout,
               [counts = counts_, method,
                done = std::move(done)](absl::StatusOr<std::string> reply) mutable {
                 CountEnd(counts->calls[method], reply, 0);
                 done(std::move(reply));
               });
}

TransferId CountingTransport::Read(const std::string& address, std::string request,
                                   std::span<std::byte> into, Duration timeout, ReadDone done) {
  CountBegin(counts_->reads, request);
  return inner_->Read(address, std::move(request), into, timeout,
                      [counts = counts_, bytes = into.size(),
                       done = std::move(done)](absl::StatusOr<std::string> header) mutable {
                        CountEnd(counts->reads, header, bytes);
                        done(std::move(header));
                      });
}

void CountingTransport::Serve(const std::string& method, CallHandler handler) {
  if (!handler) return inner_->Serve(method, nullptr);
  inner_->Serve(method, [counts = counts_, method, handler = std::move(handler)](
                            std::string request, CallDone done) mutable {
    CountBegin(counts->calls_served[method], request);
    handler(std::move(request),
            [counts, method, done = std::move(done)](absl::StatusOr<std::string> reply) mutable {
              CountEnd(counts->calls_served[method], reply, 0);
              done(std::move(reply));
            });
  });
}

void CountingTransport::ServeReads(ReadHandler handler) {
  if (!handler) return inner_->ServeReads(nullptr);
  inner_->ServeReads([counts = counts_, handler = std::move(handler)](
                         std::string request, uint64_t bytes, auto done) mutable {
    CountBegin(counts->reads_served, request);
    handler(std::move(request), bytes,
            [counts, bytes, done = std::move(done)](absl::StatusOr<ReadSource> source) mutable {
              const auto header =
                  source.ok() ? absl::StatusOr<std::string>(source->header) : source.status();
              CountEnd(counts->reads_served, header, bytes);
              done(std::move(source));
            });
  });
}

}  // namespace unreft
