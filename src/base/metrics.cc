#include "base/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <exception>

#include "base/check.h"

namespace unreft {

struct Metrics::Impl {
  explicit Impl(Labels labels) : common(std::move(labels)) {}
  Labels With(const Labels& labels) const {
    Labels all = common;
    all.insert(labels.begin(), labels.end());
    return all;
  }

  const Labels common;
  prometheus::Registry registry;
};

namespace {

// prometheus-cpp throws for a name it does not allow or that has another kind.
template <typename Metric, typename Builder, typename... Args>
Metric& Register(prometheus::Registry& registry, Builder builder, const std::string& name,
                 const std::string& help, const Metrics::Labels& labels, const Args&... args) {
  try {
    return builder.Name(name).Help(help).Register(registry).Add(labels, args...);
  } catch (const std::exception& error) {
    UNREFT_CHECK(false, "metric {}: {}", name, error.what());
  }
}

}  // namespace

void Counter::Add(double amount) { impl_->Increment(amount); }
double Counter::value() const { return impl_->Value(); }

void Gauge::Set(double value) { impl_->Set(value); }
void Gauge::Add(double amount) { impl_->Increment(amount); }
double Gauge::value() const { return impl_->Value(); }

void Histogram::Observe(double value) { impl_->Observe(value); }

Metrics::Metrics(Labels common) : impl_(std::make_unique<Impl>(std::move(common))) {}
Metrics::~Metrics() = default;

Counter Metrics::NewCounter(const std::string& name, const std::string& help,
                            const Labels& labels) {
  return Counter(Register<prometheus::Counter>(impl_->registry, prometheus::BuildCounter(), name,
                                               help, impl_->With(labels)));
}

Gauge Metrics::NewGauge(const std::string& name, const std::string& help, const Labels& labels) {
  return Gauge(Register<prometheus::Gauge>(impl_->registry, prometheus::BuildGauge(), name, help,
                                           impl_->With(labels)));
}

Histogram Metrics::NewHistogram(const std::string& name, const std::string& help,
                                const std::vector<double>& bounds, const Labels& labels) {
  return Histogram(Register<prometheus::Histogram>(impl_->registry, prometheus::BuildHistogram(),
                                                   name, help, impl_->With(labels), bounds));
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

std::vector<double> DurationBounds() {
  return {1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3, 10, 30, 100};
}

}  // namespace unreft
